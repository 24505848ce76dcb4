"""Text that was left unsaid is told to every kind of client."""

import base64
import io
import json

import httpx
import numpy as np
import pytest
import soundfile

from client_stage import Pair
from fake_backend import ends_after
from http_client import SPEECH, post
from serving import Served, Server
from waiting import HANG_S

FOUR = "The first one is here. A second one follows. Then the third is said. The fourth ends it."
CUT = {"max_segment_frames": 20, "max_segment_chars": 24}
"""Each of the four sentences is cut after 20 frames."""


def sample(served: Served, name: str) -> float:
    lines = httpx.get(served.url + "/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " "))


def read(served: Served, path: str, **body: object) -> tuple[bytes, bool]:
    """Return the bytes that were sent, and whether the response broke off."""
    data = b""
    with httpx.stream("POST", served.url + path, json=body, timeout=HANG_S) as response:
        assert response.status_code == 200
        try:
            for part in response.iter_raw():
                data += part
        except httpx.RemoteProtocolError:
            return data, True
    return data, False


def decoded(data: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(data))[0]


@pytest.mark.parametrize("format_", ["pcm", "wav", "mp3", "flac", "plain"])
def test_a_response_that_leaves_text_out_breaks_off(serve: Server, format_: str) -> None:
    served = serve(ends_after(None), **CUT)
    asked = (
        ("/tts/stream", {"text": FOUR}) if format_ == "plain" else (SPEECH, {"input": FOUR, "response_format": format_})
    )
    data, broken = read(served, asked[0], **asked[1])
    assert broken
    if format_ == "mp3":
        assert len(decoded(data)) >= 4 * 20 * 1920, "all audio from before the failure arrived"
    elif format_ in ("pcm", "plain"):
        assert len(data) == 4 * 20 * 1920 * 2
    assert sample(served, 'megatalker_utterances_total{finish_reason="incomplete",route="http"}') == 1
    assert 4 <= sample(served, 'megatalker_unsaid_characters_total{route="http"}') < len(FOUR) / 2
    assert sample(served, "megatalker_engine_incomplete_total") == 1


@pytest.mark.usefixtures("short_speech_is_repeated")
def test_speech_that_was_said_again_and_is_whole_ends_well(serve: Server) -> None:
    served = serve(ends_after(4, 25), max_segment_chars=24)
    data, broken = read(served, SPEECH, input=FOUR, response_format="pcm")
    assert (len(data), broken) == ((4 + 4 * 25) * 1920 * 2, False)
    assert sample(served, "megatalker_engine_repeated_total") == 1


def test_events_end_with_an_error_and_the_facts(serve: Server) -> None:
    response = post(serve(ends_after(None), **CUT), input=FOUR, response_format="pcm", stream_format="sse")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert len(audio) == 4 * 20 * 1920 * 2
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "IncompleteSpeechError")
    assert events[-1]["facts"]["finish_reason"] == "incomplete"
    assert str(events[-1]["facts"]["unsaid_chars"]) in events[-1]["error"]["message"]


@pytest.mark.usefixtures("short_speech_is_repeated")
def test_speech_without_any_audio_is_an_error_with_a_status(serve: Server) -> None:
    response = post(serve(ends_after(0)), input="Hello there.")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "IncompleteSpeechError"
    assert response.json()["error"]["code"] == "incomplete_speech"


def test_a_bound_that_the_request_asks_for_ends_well_and_one_of_the_server_does_not(serve: Server) -> None:
    served = serve(ends_after(None), max_frames=30)
    asked = {"input": FOUR, "response_format": "pcm"}
    data, broken = read(served, SPEECH, **asked, max_frames=5)
    assert (len(data), broken) == (5 * 1920 * 2, False)
    data, broken = read(served, SPEECH, **asked)
    assert (len(data), broken) == (30 * 1920 * 2, True)
    response = post(served, **asked, max_frames=5, stream_format="sse")
    done = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert (done["type"], done["facts"]["finish_reason"]) == ("speech.audio.done", "max_frames")
    assert done["facts"]["unsaid_chars"] > len(FOUR) / 2


def test_both_websockets_say_so_with_the_end(serve: Server) -> None:
    served = serve(ends_after(None), **CUT)
    talk = served.talk()
    talk.say("open", text=FOUR)
    done = talk.hear_all().last
    assert (done["type"], done["finish_reason"]) == ("done", "incomplete")
    assert 4 <= done["facts"]["unsaid_chars"] < len(FOUR) / 2
    talk.say("open", id="fed")
    for word in FOUR.split(" "):
        talk.say("text", id="fed", text=word + " ")
    talk.say("finish", id="fed")
    assert talk.hear_all("fed").last["finish_reason"] == "incomplete"
    plain = served.talk("/api/v1/speak").socket
    plain.send(json.dumps({"type": "start"}))
    plain.send(json.dumps({"type": "speak", "text": FOUR, "id": "a"}))
    events = []
    while not events or events[-1]["type"] != "complete":
        message = plain.recv(HANG_S)
        events += [json.loads(message)] if isinstance(message, str) else []
    assert events[-1]["finish_reason"] == "incomplete"
    assert events[-1]["unsaid_chars"] == done["facts"]["unsaid_chars"]


def test_a_remote_engine_knows(connect: Pair) -> None:
    served, remote = connect(ends_after(None), **CUT)
    near, far = served.engine.speak(FOUR, seed=1), remote.speak(FOUR, seed=1)
    np.testing.assert_array_equal(near.read_all(), far.read_all())
    assert far.finish_reason == near.finish_reason == "incomplete"
    assert far.facts().unsaid_chars == near.facts().unsaid_chars > 0


def test_text_fed_to_a_remote_stream_that_has_ended_counts_as_unsaid(connect: Pair) -> None:
    _, remote = connect(ends_after(None))
    stream = remote.speak(None, max_frames=3)
    stream.feed("Hello there, this is one. ")
    stream.read_all()
    before = stream.facts().unsaid_chars
    stream.feed("And this.")
    assert (stream.finish_reason, stream.facts().unsaid_chars) == ("max_frames", before + len("And this."))

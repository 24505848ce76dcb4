"""Each element of markup on each face of the engine, its client and its server."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from fake_backend import Fakes
from markup_elements import ELEMENTS, FRAMES, Element, elements
from megatalker.checkpoint import Checkpoint
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.protocols import Speech, SpeechEngine
from megatalker.errors import InvalidRequestError, MarkupError
from megatalker.serving.audio import from_pcm16
from megatalker.serving.client import RemoteEngine
from megatalker.voices import Voice
from serving import Served, fakes_with, serving
from spoken_text import SpokenText
from waiting import HANG_S

SEED = 5
Heard = tuple[NDArray[np.float32], list[tuple[str, int]] | None]
"""Samples at 24 kHz, and marks where the face tells them."""


@pytest.fixture(scope="module")
def served(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, fakes_with(frames=FRAMES), short_speech="believe") as running:
        yield running


def options(element: Element, speaker: str) -> dict[str, Any]:
    return {"markup": element.markup, "cast": {"Anna": speaker}, "language": "english", "seed": SEED}


def heard(stream: Speech) -> Heard:
    chunks = list(stream)
    marks = [(mark.name, mark.sample) for chunk in chunks for mark in chunk.marks]
    return np.concatenate([chunk.pcm for chunk in chunks]), marks


def whole(engine: SpeechEngine, element: Element, wishes: dict[str, Any]) -> Heard:
    return heard(engine.speak(element.text, SpeechOptions(**wishes)))


def in_pieces(engine: SpeechEngine, element: Element, wishes: dict[str, Any]) -> Heard:
    stream = engine.speak(None, **wishes)
    for character in element.text:
        stream.feed(character)
    stream.finish()
    return heard(stream)


def over_http(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    body = {"input": element.text, "response_format": "pcm", **wishes}
    answer = httpx.post(f"{served.url}/v1/audio/speech", json=body, timeout=HANG_S).raise_for_status()
    return from_pcm16(answer.content), None


def as_events(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    body = {"input": element.text, "response_format": "pcm", "stream_format": "sse", **wishes}
    answer = httpx.post(f"{served.url}/v1/audio/speech", json=body, timeout=HANG_S).raise_for_status()
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == "speech.audio.done", events[-1]
    data = b"".join(base64.b64decode(one["audio"]) for one in events if one["type"] == "speech.audio.delta")
    told = [mark for one in events if one["type"] == "speech.audio.marks" for mark in one["marks"]]
    assert all(mark["time"] == pytest.approx(mark["sample"] / 24_000, abs=1e-6) for mark in told)
    return from_pcm16(data), [(mark["name"], mark["sample"]) for mark in told]


def over_the_short_route(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    body = {"text": element.text, **wishes}
    answer = httpx.post(f"{served.url}/tts/stream", json=body, timeout=HANG_S).raise_for_status()
    return from_pcm16(answer.content), None


def over_a_websocket(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    talk = served.talk()
    talk.say("open", format="f32le", **wishes)
    for character in element.text:
        talk.say("text", text=character)
    talk.say("finish")
    output = talk.hear_all()
    assert output.last["type"] == "done", output.last
    told = [mark for event in output.events if event["type"] == "marks" for mark in event["marks"]]
    return output.pcm(), [(mark["name"], mark["sample"]) for mark in told]


def over_few_words(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    socket = served.talk("/api/v1/speak").socket
    socket.send(json.dumps({"type": "start", **wishes}))
    socket.send(json.dumps({"type": "speak", "text": element.text}))
    data, told = b"", list[tuple[str, int]]()
    while True:
        message = socket.recv(HANG_S)
        if isinstance(message, bytes):
            data += message
            continue
        event = json.loads(message)
        if event["type"] == "marks":
            told += [(mark["name"], mark["sample"]) for mark in event["marks"]]
        elif event["type"] != "ready":
            assert event["type"] == "complete", event
            return from_pcm16(data), told


def by_client(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    with RemoteEngine(served.url) as engine:
        return whole(engine, element, wishes)


def by_client_in_pieces(served: Served, element: Element, wishes: dict[str, Any]) -> Heard:
    with RemoteEngine([served.url, served.url]) as engine:
        return in_pieces(engine, element, wishes | {"cast": {"Anna": Voice.named(wishes["cast"]["Anna"])}})


FACES: dict[str, Callable[[Served, Element, dict[str, Any]], Heard]] = {
    "Python": lambda served, element, wishes: whole(served.engine, element, wishes),
    "Python, in pieces": lambda served, element, wishes: in_pieces(served.engine, element, wishes),
    "POST /v1/audio/speech": over_http,
    "events of POST /v1/audio/speech": as_events,
    "POST /tts/stream": over_the_short_route,
    "WS /v1/speak": over_a_websocket,
    "WS /api/v1/speak": over_few_words,
    "RemoteEngine": by_client,
    "RemoteEngine, in pieces": by_client_in_pieces,
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_each_element_on_each_face(
    served: Served, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, name: str, face: str
) -> None:
    speaker = list(tiny_custom_voice.config.speakers)[1]
    element, spoken = elements(speaker)[name], SpokenText(monkeypatch)
    samples, marks = FACES[face](served, element, options(element, speaker))
    assert tuple(spoken.take()) == element.segments
    element.require_pause(samples)
    assert marks is None or tuple(marks) == element.marks


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"markup": "html"}, "markup is 'html'"),
        ({"markup": "ssml", "input": "a\n<b>"}, "line 2, column 1: unknown element <b>"),
        ({"markup": "tags", "input": "[pause:x]"}, "line 1, column 1: the pause is 'x'"),
        ({"markup": "tags", "cast": {"a": "nobody"}}, "nobody"),
        ({"markup": "tags", "cast": ["a"]}, "cast"),
        ({"markup": "tags", "cast_files": {"a": "?"}}, "voice_file is not base64"),
        ({"cast": {"a": "b"}}, "cast names the voices of a text in markup"),
        ({"markup": "tags", "clean_text": False}, "markup changes the text"),
    ],
)
def test_impossible_wishes_are_refused(served: Served, fields: dict[str, Any], message: str) -> None:
    answer = httpx.post(f"{served.url}/v1/audio/speech", json={"input": "Hi.", **fields}, timeout=HANG_S)
    assert answer.status_code in (400, 422)
    assert message in answer.json()["error"]["message"]


def test_a_fault_in_text_that_arrives_is_told_with_its_place(served: Served) -> None:
    talk = served.talk()
    talk.say("open", format="f32le", markup="ssml")
    talk.say("text", text="Ready now. <break time='1s'/>")
    talk.say("text", text="It is <b>bold</b>.")
    last = talk.hear_all().last
    assert (last["type"], last["error"]["type"]) == ("error", "MarkupError")
    assert "line 1, column 36: unknown element <b>" in last["error"]["message"]
    with RemoteEngine(served.url) as engine:
        stream = engine.speak(None, markup="ssml")
        stream.feed("Ready <p>now.")
        stream.finish()
        with pytest.raises(MarkupError, match="line 1, column 14: the text ends within <p>"):
            stream.read_all()
        with pytest.raises(InvalidRequestError, match="markup is 'html'"):
            engine.speak("Hi.", markup="html")  # type: ignore[arg-type]


def test_a_client_counts_pauses_and_rates(served: Served) -> None:
    part = FRAMES * 1920 / 24_000
    with RemoteEngine(served.url) as engine:
        for text, seconds in (
            ("<break time='1s'/>", 1.0),
            ("Ready now.<break time='1s'/>", part + 1.0),
            ("<prosody rate='50%'>Ready now.</prosody>", 2 * part),
        ):
            stream = engine.speak(text, markup="ssml", seed=SEED)
            assert len(stream.read_all()) == round(seconds * 24_000)
            assert stream.facts().audio_s == pytest.approx(seconds)


def test_a_setting_holds_for_the_server(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, Fakes(), markup="tags") as running:
        pause = httpx.post(f"{running.url}/v1/audio/speech", json={"input": "[pause:1s]", "response_format": "pcm"})
        assert len(pause.content) == 48_000


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus"])
def test_a_pause_survives_each_format(served: Served, kind: str) -> None:
    import io

    import soundfile

    body = {"input": "Ready now.[pause:1s]Go now.", "markup": "tags", "response_format": kind, "seed": SEED}
    answer = httpx.post(f"{served.url}/v1/audio/speech", json=body, timeout=HANG_S).raise_for_status()
    heard, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
    at = FRAMES * 1920 / 24_000
    frame = {"mp3": 1152 / 24_000, "opus": 0.02}.get(kind, 0.001)
    inside = heard[int((at + 2 * frame + 0.002) * rate) : int((at + 1 - 2 * frame) * rate)]
    loud = heard[: int(at * rate)]
    assert np.square(inside).mean() < np.square(loud).mean() * 1e-4
    assert len(heard) / rate == pytest.approx(2 * at + 1, abs=4 * frame)

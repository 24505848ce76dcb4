"""Common behaviour of the five ways to ask a server for speech: samples, timing, refusals, faults."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest

from http_client import SPEECH, pcm16
from megatalker.serving.audio import to_pcm16
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S, eventually

FRAME_BYTES = 1920 * 2


class RefusedError(Exception):
    """The server's answer where it does not speak, or stops: the public name of an error, and its message."""

    def __init__(self, kind: str, message: str, retry_after_s: float | None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.retry_after_s = kind, message, retry_after_s


Face = Callable[..., Iterator[bytes]]
"""Speaks with these wishes; yields 16-bit samples as they come, and hangs up when it is closed."""


STATUSES = {"InvalidRequestError": 400, "CapacityError": 429, "BackendFaultError": 500, "InternalError": 500}


def _post(served: Served, path: str, **body: Any) -> Iterator[httpx.Response]:
    with httpx.stream("POST", served.url + path, json=body, timeout=HANG_S) as response:
        if response.status_code != 200:
            error = json.loads(response.read())["error"]
            assert response.status_code == STATUSES[error["type"]]
            assert "retry_after_s" not in error, "the header says it"
            retry_after = response.headers.get("retry-after")
            assert retry_after == ("1" if response.status_code == 429 else None)
            raise RefusedError(error["type"], error["message"], retry_after and float(retry_after))
        assert response.headers["x-sample-rate"] == "24000"
        assert response.headers["x-megatalker-backend"] == "fake"
        assert response.headers["x-megatalker-seed"] == str(body.get("seed", response.headers["x-megatalker-seed"]))
        yield response


def speech(served: Served, *, text: str = TEXT, **wishes: Any) -> Iterator[bytes]:
    own = {"input": text, "response_format": "pcm", "model": served.engine.checkpoint.name, "speed": 1}
    for response in _post(served, SPEECH, **own, **wishes):
        assert response.headers["content-type"] == "audio/pcm"
        yield from response.iter_raw()


def events(served: Served, *, text: str = TEXT, **wishes: Any) -> Iterator[bytes]:
    own, frames = {"input": text, "response_format": "pcm", "stream_format": "sse"}, 0
    for response in _post(served, SPEECH, **own, **wishes):
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in filter(None, response.iter_lines()):
            event = json.loads(line.removeprefix("data: "))
            if event["type"] == "speech.audio.delta":
                data = base64.b64decode(event["audio"])
                frames += len(data) // FRAME_BYTES
                yield data
                continue
            if event["type"] == "error":
                raise _refused(event["error"])
            assert event["type"] == "speech.audio.done"
            assert event["facts"]["frames"] == frames
            assert event["facts"]["finish_reason"] == ("max_frames" if "max_frames" in wishes else "eos")


def stream(served: Served, *, text: str = TEXT, **wishes: Any) -> Iterator[bytes]:
    for response in _post(served, "/tts/stream", text=text, **_plain(wishes)):
        assert response.headers["content-type"] == "audio/pcm"
        yield from response.iter_raw()


def speak(served: Served, *, text: str = TEXT, **wishes: Any) -> Iterator[bytes]:
    with served.talk() as talk:
        talk.say("open", id="a", text=text, **wishes)
        while True:
            message = talk.hear()
            if not isinstance(message, dict):
                assert (message.id, message.codes) == ("a", None)
                yield to_pcm16(message.pcm)
                continue
            if message["type"] == "error":
                assert message["id"] == "a" or message["error"]["type"] == "InvalidRequestError"
                raise _refused(message["error"])
            assert message["id"] == "a"
            if message["type"] == "done":
                assert message["finish_reason"] == ("max_frames" if "max_frames" in wishes else "eos")
                return
            assert message["type"] == "switched" or (message["type"], message["format"]) == ("opened", "s16le")


def plain(served: Served, *, text: str = TEXT, **wishes: Any) -> Iterator[bytes]:
    with served.talk("/api/v1/speak") as talk:
        talk.say("start", **_plain(wishes))
        ready = talk.hear_event()
        if ready["type"] == "error":
            raise _refused(ready | {"type": KINDS[ready["code"]]})
        talk.say("speak", id="a", text=text)
        while isinstance(message := talk.socket.recv(HANG_S), bytes):
            yield message
        event = json.loads(message)
        assert event["id"] == "a"
        if event["type"] == "error":
            raise _refused(event | {"type": KINDS[event["code"]]})
        assert event["finish_reason"] == ("max_frames" if "max_frames" in wishes else "eos")


def _plain(wishes: dict[str, Any]) -> dict[str, Any]:
    """The wishes in the words of the plain protocol; its limit of tokens counts the end of speech."""
    names = {"voice": "speaker", "max_frames": "max_new_tokens"}
    return {names.get(name, name): value + 1 if name == "max_frames" else value for name, value in wishes.items()}


KINDS = {
    "UNKNOWN_VOICE": "InvalidRequestError",
    "INVALID_TEXT": "InvalidRequestError",
    "INVALID_MESSAGE": "InvalidRequestError",
    "TOO_MANY_STREAMS": "CapacityError",
    "BACKEND_FAULT": "BackendFaultError",
    "INTERNAL_ERROR": "InternalError",
}
"""Public names of errors by the codes of the plain protocol."""


def _refused(error: dict[str, Any]) -> RefusedError:
    return RefusedError(error["type"], error["message"], error["retry_after_s"])


FACES = (speech, events, stream, speak, plain)
every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)


@every_face
@pytest.mark.parametrize("voice", ["serena", "serena:0.6+ryan:0.4"])
def test_wishes_reach_the_engine_and_its_samples_the_client(shared: Served, face: Face, voice: str) -> None:
    wishes: dict[str, Any] = {"voice": voice, "language": "english", "seed": 3, "max_frames": 9}
    samples = np.frombuffer(b"".join(face(shared, **wishes)), "<i2")
    np.testing.assert_array_equal(samples, pcm16(shared, **wishes))


@every_face
def test_a_text_without_a_sound_ends_well(shared: Served, face: Face) -> None:
    for text in ("🎉", "...", "?!", "—"):
        assert b"".join(face(shared, text=text)) == (b"" if face in (speak, plain) else bytes(960)), "20 ms of silence"


@every_face
def test_audio_comes_before_the_second_frame_exists(serve: Server, face: Face) -> None:
    more = threading.Event()
    parts = face(serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S))))
    heard = 0
    while heard < FRAME_BYTES:
        heard += len(next(parts))
    assert heard == FRAME_BYTES
    more.set()
    assert sum(map(len, parts)) == 29 * FRAME_BYTES


@every_face
def test_a_client_that_goes_away_frees_its_row(serve: Server, face: Face) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    with closing(face(served)) as parts:  # type: ignore[type-var] # generators, all of them
        next(parts)
        assert fakes.loaded["fake"].streams
    eventually(lambda: served.rows_free(fakes) and not served.server.service.running, "the server has forgotten it")


@every_face
@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ({"text": ""}, "the text is empty"),
        ({"text": " \n\t"}, "the text is empty"),
        ({"text": "x" * 30_000}, "30000 characters"),
        ({"voice": "nobody"}, "unknown speaker 'nobody'"),
        ({"voice": "serena:0.6+nobody:0.4"}, "unknown voice 'nobody' in the mix"),
        ({"voice": "serena:0+ryan:1"}, "a weight of a mixed voice is 0"),
        ({"voice": "+".join(["ryan"] * 20_000)}, "mixes 20,000 voices"),
        ({"language": "klingon"}, "klingon"),
        ({"seed": 2**64}, "seed is"),
        ({"max_frames": 10**6}, "max_frames is 1000000"),
    ],
)
def test_an_impossible_request_is_refused(shared: Served, face: Face, wishes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RefusedError) as refused:
        list(face(shared, **wishes))
    assert (refused.value.kind, refused.value.retry_after_s) == ("InvalidRequestError", None), "waiting does not help"
    assert complaint in refused.value.message


def test_a_full_server_asks_to_try_again(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0)
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        for face in FACES:
            with pytest.raises(RefusedError) as refused:
                list(face(served))
            assert refused.value.kind == "CapacityError", face
            assert "1 streams run and 0 wait already" in refused.value.message
            assert refused.value.retry_after_s
            assert refused.value.retry_after_s > 0


@pytest.mark.parametrize("face", [events, speak, plain], ids=lambda face: face.__name__)
def test_a_fault_of_every_backend_is_reported_after_the_speech_so_far(serve: Server, face: Face) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("on fire")

    served = serve(fakes_with(on_decode=fail))
    heard = []
    with pytest.raises(RefusedError, match=r"BackendFaultError: .*on fire"):
        heard.extend(face(served))
    served.thread.join(HANG_S)
    assert not served.thread.is_alive(), "a server that can never speak again stops"
    assert "on fire" in str(served.server.failure)


def test_a_defect_is_told_without_details_and_ends_one_utterance(
    serve: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    talk = served.talk()
    talk.say("open", id="good")
    talk.hear_until("opened", utterance="good")

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret of the server")

    for face in FACES:
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(served.engine, "speak_for", crash)
            with pytest.raises(RefusedError) as refused:
                list(face(served))
        assert refused.value.kind == "InternalError", face
        assert "secret" not in refused.value.message
        eventually(lambda: "a secret of the server" in caplog.text, "it is in the log")
        assert len(b"".join(face(served, max_frames=3))) == 3 * FRAME_BYTES, "the server still speaks"
    talk.say("text", id="good", text=TEXT)
    talk.say("finish", id="good")
    assert talk.hear_all("good").last["finish_reason"] == "eos"

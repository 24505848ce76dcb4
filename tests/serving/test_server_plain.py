"""``POST /tts/stream`` and ``WS /api/v1/speak``: the protocols of few words."""

import json
import socket
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from fake_backend import FakeTalker
from http_client import pcm16
from megatalker.serving.samples import SampleEncoder
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S, eventually

PIECE_BYTES = 24_000 * 40 // 1000 * 2


def stream(served: Served, **body: Any) -> httpx.Response:
    return httpx.post(served.url + "/tts/stream", json={"text": TEXT} | body, timeout=HANG_S)


class PlainClient:
    """A client that keeps audio and events apart."""

    def __init__(self, served: Served, *, start: bool = True) -> None:
        self.socket: ClientConnection = served.talk("/api/v1/speak").socket
        self.pieces: list[bytes] = []
        if start:
            self.say("start")
            assert self.event()["type"] == "ready"

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def event(self) -> dict[str, Any]:
        """The next event; audio before it is kept."""
        while isinstance(message := self.socket.recv(HANG_S), bytes):
            self.pieces.append(message)
        return json.loads(message)

    def samples(self) -> np.ndarray:
        """All audio since the last call."""
        assert {len(piece) for piece in self.pieces} <= {PIECE_BYTES}
        data, self.pieces = b"".join(self.pieces), []
        return np.frombuffer(data, "<i2")


# ---- POST /tts/stream


def test_max_new_tokens_counts_the_end_of_speech_as_officially(shared: Served) -> None:
    shared = shared  # which ends by itself after 30 frames: the 31st token
    for tokens, frames in ((2, 1), (30, 29), (31, 30), (32, 30)):
        assert len(stream(shared, max_new_tokens=tokens).content) == frames * 1920 * 2


def test_each_part_of_the_body_is_40_ms_and_the_first_comes_with_the_first_frame(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))
    address = ("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    body = json.dumps({"text": TEXT}).encode()
    head = "POST /tts/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with socket.create_connection(address, HANG_S) as connection, connection.makefile("rb") as file:
        connection.sendall(head.encode() + body)
        while file.readline().strip():
            pass
        sizes = []
        while size := int(file.readline(), 16):
            file.read(size + 2)
            sizes.append(size)
            if len(sizes) == 2:
                more.set()
    assert sizes == [PIECE_BYTES] * 60


def test_the_stream_route_has_formats_and_rates(shared: Served) -> None:
    speech = shared.engine.speak(TEXT, seed=3).read_all()
    for kind, rate, media_type in (("pcm_alaw", 8_000, "audio/PCMA"), ("s16le", 16_000, "audio/pcm")):
        response = stream(shared, seed=3, format=kind, sample_rate=rate)
        encoder = SampleEncoder(kind, rate)
        assert (response.headers["content-type"], response.headers["x-sample-rate"]) == (media_type, str(rate))
        assert response.content == encoder.encode(speech) + encoder.finish()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"format": "mp3"}, "format is 'mp3'"),
        ({"text": None}, "text is missing"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1"),
        ({"speakr": "ryan"}, "did you mean 'speaker'?"),
    ],
)
def test_refusals_of_the_stream_route(shared: Served, body: dict[str, Any], complaint: str) -> None:
    response = stream(shared, **body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "InvalidRequestError")
    assert complaint in response.json()["error"]["message"]


# ---- WS /api/v1/speak


def test_a_session_from_start_to_stop(shared: Served) -> None:
    session = PlainClient(shared, start=False)
    session.say("start", speaker="serena", language="english", max_new_tokens=10, seed=3)
    assert session.event() == {"type": "ready", "sample_rate": 24_000, "format": "s16le", "backend": "fake"}
    expected = pcm16(shared, voice="serena", language="english", max_frames=9, seed=3)
    for name in ("a", "b"):
        session.say("speak", id=name, text=TEXT)
    session.say("stop")
    for name in ("a", "b"):
        done = session.event()
        assert (done["type"], done["id"], done["finish_reason"]) == ("complete", name, "max_frames")
        assert done["audio_s"] == pytest.approx(9 * 0.08)
        np.testing.assert_array_equal(session.samples(), expected)
    with pytest.raises(ConnectionClosed) as closed:
        session.event()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000
    eventually(lambda: not shared.server.service.running, "nothing runs")


def test_a_telephone_session(shared: Served) -> None:
    session = PlainClient(shared, start=False)
    session.say("start", format="ulaw", seed=3)
    ready = session.event()
    assert (ready["sample_rate"], ready["format"]) == (8_000, "pcm_mulaw")
    session.say("speak", text=TEXT)
    assert session.event()["type"] == "complete"
    assert {len(piece) for piece in session.pieces[:-1]} == {320}
    encoder, speech = SampleEncoder("pcm_mulaw"), shared.engine.speak(TEXT, seed=3).read_all()
    assert b"".join(session.pieces) == encoder.encode(speech) + encoder.finish()


def test_a_session_may_start_anew(shared: Served) -> None:
    session = PlainClient(shared)
    for voice in ("ryan", "serena"):
        session.say("start", speaker=voice, seed=3)
        assert session.event()["type"] == "ready"
        session.say("speak", text=TEXT)
        assert session.event()["type"] == "complete"
        np.testing.assert_array_equal(session.samples(), pcm16(shared, voice=voice, seed=3))


def test_cancel_completes_running_and_waiting_utterances(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    session = PlainClient(served)
    for name in ("a", "b", "c"):
        session.say("speak", id=name, text=TEXT)
    session.socket.recv(HANG_S)
    session.say("cancel")
    ends = [session.event() for _ in range(3)]
    assert [(end["type"], end["id"], end["finish_reason"]) for end in ends] == [
        ("complete", name, "cancelled") for name in ("a", "b", "c")
    ]
    eventually(lambda: served.rows_free(fakes), "its row is free")
    assert fakes.loaded["fake"].issued == 1, "the waiting request never began"
    session.samples()
    session.say("start", max_new_tokens=6)
    assert session.event()["type"] == "ready"
    session.say("speak", text=TEXT)
    assert session.event()["finish_reason"] == "max_frames"
    assert len(session.samples()) == 5 * 1920, "the session lives on"


def refusal(session: PlainClient, kind: str, **fields: Any) -> tuple[str, str | None, str]:
    session.say(kind, **fields)
    error = session.event()
    assert error["type"] == "error"
    return error["code"], error["id"], error["message"]


def test_the_codes_of_errors(shared: Served) -> None:
    session = PlainClient(shared, start=False)
    code, name, message = refusal(session, "speak", text=TEXT)
    assert (code, name, "send start first" in message) == ("INVALID_MESSAGE", None, True)
    code, name, message = refusal(session, "start", speaker="nobody")
    assert (code, name, "'nobody'; known: aiden" in message) == ("UNKNOWN_VOICE", None, True)
    code, _, message = refusal(session, "start", language="klingon")
    assert (code, "klingon" in message) == ("INVALID_MESSAGE", True)
    for wrong in ("nonsense", "{}", b"\0"):
        session.socket.send(wrong)
        assert session.event()["code"] == "INVALID_MESSAGE"
    session.say("start")
    assert session.event()["type"] == "ready"
    code, name, message = refusal(session, "speak", id="a", text=" ")
    assert (code, name, "the text is empty" in message) == ("INVALID_TEXT", "a", True)
    session.say("speak", text=TEXT)
    assert session.event()["type"] == "complete", "none of it ended the session"
    session.say("stop")
    with pytest.raises(ConnectionClosed):
        session.event()


def test_loading_is_told(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = threading.Event()
    monkeypatch.setattr(FakeTalker, "warmup", lambda self: warm.wait(HANG_S))
    served = serve(ready=False)
    eventually(lambda: served.server.started, "the server answers")
    session = PlainClient(served, start=False)
    assert refusal(session, "start")[0] == "MODEL_LOADING"
    warm.set()
    eventually(lambda: served.server.service.ready, "the server is ready")
    session.say("start")
    assert session.event()["type"] == "ready"


def test_too_many_utterances_of_one_session(serve: Server) -> None:
    first = PlainClient(serve(endless(), **ENDLESS))
    first.say("speak", id="0", text=TEXT)
    first.socket.recv(HANG_S)
    for number in range(1, 17):
        first.say("speak", id=str(number), text=TEXT)
    error = first.event()
    assert (error["code"], error["id"]) == ("TOO_MANY_STREAMS", "16")

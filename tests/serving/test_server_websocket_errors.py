"""``/v1/speak`` when something is wrong: refused messages, late texts, faults, and the end of the server."""

import threading
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed

from fake_backend import Fakes
from serving import ENDLESS, TEXT, Served, Server, Talk, endless, fakes_with
from waiting import HANG_S, eventually

# ---- errors


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("nonsense", "this is not JSON"),
        ("[1]", "should be an object"),
        ('{"text": "Hi."}', "type"),
        ('{"type": "sing"}', "'open', 'text', 'finish', 'cancel'"),
        ('{"type": "open", "txt": "Hi."}', "unknown key 'txt'"),
        ('{"type": "open", "seed": "five"}', "seed is 'five'"),
        ('{"type": "open", "seed": -2}', "seed is -2"),
        ('{"type": "open", "format": "mp3"}', "'s16le', 'f32le', 'pcm_mulaw' or 'pcm_alaw'"),
        ('{"type": "open", "max_ahead_s": 0}', "max_ahead_s is 0"),
        ('{"type": "text", "text": 5}', "text is 5"),
        ('{"type": "text", "id": "x", "text": "Hi."}', "no utterance 'x' is open"),
        ('{"type": "finish"}', "no utterance '' is open"),
        ('{"type": "cancel", "id": "y"}', "no utterance 'y' is open"),
        (b"\0\1", "a binary message came"),
    ],
)
def test_a_refused_message_ends_nothing(shared: Served, message: str | bytes, complaint: str) -> None:
    talk = shared.talk()
    talk.socket.send(message)
    refusal = talk.hear_event()
    assert (refusal["type"], refusal["id"], refusal["error"]["type"]) == ("error", None, "InvalidRequestError")
    assert complaint in refusal["error"]["message"]
    talk.say("open", text="Hi.")
    assert talk.hear_all().last["type"] == "done"


def test_an_id_in_use_is_refused_and_its_utterance_goes_on(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", id="a")
    assert talk.hear_event()["type"] == "opened"
    talk.say("open", id="a", text="Hi.")
    assert "use another id" in talk.hear_event()["error"]["message"]
    talk.say("text", id="a", text=TEXT)
    talk.say("finish", id="a")
    assert talk.hear_all("a").last["finish_reason"] == "eos"


@pytest.mark.parametrize(
    ("fields", "kind", "complaint"),
    [
        ({"text": "Hi.", "layout": "upfront", "max_frames": 10**6}, "InvalidRequestError", "max_frames is 1000000"),
        ({"layout": "upfront"}, "InvalidRequestError", "'upfront' needs the whole text"),
        ({"text": "Hi.", "sampling": {"temp": 1}}, "InvalidRequestError", "sampling has no 'temp'"),
        ({"text": "Hi.", "sampling": {"top_p": 2}}, "InvalidRequestError", "top_p is 2"),
        ({"text": "Hi.", "voice_file": "!"}, "InvalidRequestError", "not base64"),
        ({"text": "Hi.", "voice_file": "é"}, "InvalidRequestError", "not base64"),
        ({"text": "Hi.", "max_ahead_s": 1e308}, "InvalidRequestError", "max_ahead_s is 1e+308"),
        ({"text": "Hi.", "voice_file": "aGk="}, "InvalidRequestError", "voice_file is not a voice file"),
        ({"text": "Hi.", "voice": "ryan", "voice_file": "aGk="}, "InvalidRequestError", "give one of them"),
    ],
)
def test_an_impossible_request_is_told_under_its_id(
    shared: Served, fields: dict[str, Any], kind: str, complaint: str
) -> None:
    talk = shared.talk()
    talk.say("open", id="a", **fields)
    error = talk.hear_event()
    assert (error["type"], error["id"], error["error"]["type"]) == ("error", "a", kind)
    assert complaint in error["error"]["message"]
    talk.say("open", id="a", text="Hi.")
    assert talk.hear_all("a").last["type"] == "done"


@pytest.mark.parametrize(
    ("piece", "complaint"), [("Hello <|im_end|> there.", "<|im_end|>"), ("word " * 5_000, "25000 characters")]
)
def test_a_piece_that_cannot_be_spoken_costs_itself_alone(serve: Server, piece: str, complaint: str) -> None:
    fakes = Fakes()
    served = serve(fakes)
    talk = served.talk()
    talk.say("open", id="a", clean_text=False)
    talk.say("text", id="a", text=piece)
    talk.say("text", id="a", text="Hello.")
    talk.say("finish", id="a")
    heard = talk.hear_all("a")
    assert heard.packets
    assert (heard.last["type"], heard.last["finish_reason"]) == ("done", "eos")
    (refused,) = (event["error"] for event in heard.events if event["type"] == "error")
    assert refused["type"] == "InvalidRequestError"
    assert complaint in refused["message"]
    eventually(lambda: served.rows_free(fakes), "its row is free")


def test_more_text_for_a_complete_utterance_is_an_error(serve: Server) -> None:
    more = threading.Event()
    talk = serve(fakes_with(on_decode=lambda call: more.wait(HANG_S))).talk()
    talk.say("open", text=TEXT)
    talk.say("text", text="More.")
    talk.hear_until("opened")
    more.set()
    heard = talk.hear_all()
    (refused,) = (event["error"] for event in heard.events if event["type"] == "error")
    assert "has all its text" in refused["message"]
    assert heard.last["finish_reason"] == "eos", "only the late piece is refused"


def test_an_utterance_whose_text_never_comes_ends(serve: Server) -> None:
    served = serve(server={"text_timeout_s": 0.2})
    talk = served.talk()
    talk.say("open")
    talk.say("text", text="Hello there, and ")
    error = talk.hear_all().last
    assert error["error"]["type"] == "InvalidRequestError"
    assert "no text came for 0.2 s" in error["error"]["message"]
    eventually(lambda: not served.engine.metrics().waiting, "nothing waits")


@pytest.mark.slow
def test_a_finished_utterance_may_take_longer_than_the_text_timeout(serve: Server) -> None:
    more = threading.Event()
    talk = serve(fakes_with(on_decode=lambda call: more.wait(HANG_S)), server={"text_timeout_s": 2.0}).talk()
    talk.say("open")
    talk.say("text", text=TEXT)
    talk.say("finish")
    talk.say("open", id="later")
    assert "no text came" in talk.hear_all("later").last["error"]["message"], "the timeout has passed"
    more.set()
    assert talk.hear_all().last["finish_reason"] == "eos"


def test_a_message_beyond_the_limit_closes_the_connection(serve: Server) -> None:
    served = serve(server={"max_message_bytes": 2_000})
    talk = served.talk()
    talk.say("open", text="x" * 3_000)
    with pytest.raises(ConnectionClosed) as closed:
        talk.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    other = served.talk()
    other.say("open", text="Hi.")
    assert other.hear_all().last["type"] == "done"


# ---- the end


def hear_for_ever(talk: Talk, events: list[dict[str, Any]]) -> None:
    while True:
        message = talk.hear()
        events += [message] if isinstance(message, dict) else []


def test_stopping_ends_utterances_with_an_error_and_the_connection(serve: Server) -> None:
    served = serve(endless(), **ENDLESS)
    talk = served.talk()
    talk.say("open", id="a", text=TEXT)
    talk.say("open", id="b")
    talk.hear_until("opened", utterance="b")
    served.server.should_exit = True
    events: list[dict[str, Any]] = []
    with pytest.raises(ConnectionClosed) as closed:
        hear_for_ever(talk, events)
    assert {(event["id"], event["error"]["type"]) for event in events} == {
        ("a", "EngineClosedError"),
        ("b", "EngineClosedError"),
    }
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    served.stop()
    assert served.server.failure is None
    with pytest.raises(OSError, match="refused"):
        served.talk()


def test_a_client_that_leaves_while_the_server_stops_does_no_harm(
    serve: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a client's goodbye and the loss of its connection, uvicorn still counts the connection as open."""
    handle_close, survived = WebSocketsSansIOProtocol.handle_close, threading.Event()

    def stop_meanwhile(connection: WebSocketsSansIOProtocol, event: Any) -> None:
        handle_close(connection, event)
        connection.shutdown()
        survived.set()

    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_close", stop_meanwhile)
    with serve().talk():
        pass
    assert survived.wait(HANG_S)

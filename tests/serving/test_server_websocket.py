"""``/v1/speak`` as a client of any language meets it: a real server, a real socket, the engine on fake backends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed

from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.serving.audio import to_pcm16
from serving import ENDLESS, TEXT, Served, Talk, endless, fakes_with, serving
from waiting import HANG_S, eventually, stands_still

Server = Callable[..., Served]


@pytest.fixture
def serve(tiny_custom_voice: Checkpoint) -> Iterator[Server]:
    with ExitStack() as stack:
        yield lambda *fakes, **settings: stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))


# ---- what comes out


def test_float_audio_and_codes_equal_the_engine_s_own(serve: Server) -> None:
    served = serve()
    talk = served.talk()
    talk.say("open", text=TEXT, seed=5, format="f32le", return_codes=True)
    heard = talk.hear_all()
    chunks = list(served.engine.speak(TEXT, seed=5, return_codes=True))
    np.testing.assert_array_equal(heard.pcm(), np.concatenate([chunk.pcm for chunk in chunks]))
    np.testing.assert_array_equal(heard.codes(), np.concatenate([chunk.codes for chunk in chunks]))
    assert heard.events[0] == {
        "type": "opened",
        "id": "",
        "sample_rate": 24_000,
        "format": "f32le",
        "backend": "fake",
        "codec": "noise",
        "seed": 5,
    }
    assert (heard.packets[0].index, heard.packets[0].frames) == (0, 1)
    assert [packet.sample_offset for packet in heard.packets] == list(
        np.cumsum([0, *(len(packet.pcm) for packet in heard.packets)])[:-1]
    )
    done = heard.last
    assert (done["type"], done["finish_reason"]) == ("done", "eos")
    assert (done["facts"]["frames"], done["facts"]["seed"], done["facts"]["segments"]) == (30, 5, 1)
    assert done["facts"]["ttfc_s"] > 0


def test_16_bit_audio_is_the_same_rounded(serve: Server) -> None:
    served = serve()
    talk = served.talk()
    talk.say("open", text=TEXT, seed=5)
    heard = talk.hear_all()
    assert heard.events[0]["format"] == "s16le"
    assert heard.packets[0].codes is None
    expected = np.frombuffer(to_pcm16(served.engine.speak(TEXT, seed=5).read_all()), "<i2")
    np.testing.assert_array_equal(np.rint(heard.pcm() * 32767).astype(np.int16), expected)


def test_wishes_reach_the_engine(serve: Server) -> None:
    served = serve()
    talk = served.talk()
    wishes: dict[str, Any] = {"voice": "serena", "language": "english", "layout": "interleaved", "max_frames": 12}
    talk.say("open", text=TEXT, sampling={"temperature": 0.5, "seed": 9}, format="f32le", **wishes)
    heard = talk.hear_all()
    sampling = replace(served.engine.checkpoint.sampling, temperature=0.5, seed=9)
    np.testing.assert_array_equal(heard.pcm(), served.engine.speak(TEXT, sampling=sampling, **wishes).read_all())
    assert (heard.events[0]["seed"], heard.last["finish_reason"]) == (9, "max_frames")


def test_partial_sampling_without_a_seed_still_gets_a_random_one(serve: Server) -> None:
    talk = serve().talk()
    seeds = set()
    for _ in range(2):
        talk.say("open", text="Hi.", sampling={"temperature": 0.5})
        seeds.add(talk.hear_all().events[0]["seed"])
    assert len(seeds) == 2


def test_the_first_chunk_arrives_before_the_second_frame_exists(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))
    talk = served.talk()
    talk.say("open", text=TEXT)
    assert talk.hear_event()["type"] == "opened"
    assert talk.hear_packet().frames == 1
    more.set()
    assert sum(packet.frames for packet in talk.hear_all().packets) == 29


def test_text_may_arrive_while_it_is_spoken(serve: Server) -> None:
    served = serve()
    talk = served.talk()
    talk.say("open", seed=5, format="f32le")
    talk.say("text", text="Hello there, this is ")
    first = talk.hear_until("opened")
    first.packets.append(talk.hear_packet())
    talk.say("text", text="a sentence of a few words.")
    talk.say("finish")
    heard = talk.hear_all()
    with served.engine.speak(None, seed=5) as stream:
        stream.feed(TEXT)
        stream.finish()
        expected = stream.read_all()
    np.testing.assert_array_equal(np.concatenate([first.pcm(), heard.pcm()]), expected)


def test_utterances_share_a_connection_without_crosstalk(serve: Server) -> None:
    served = serve(max_streams=3)
    talk = served.talk()
    names = [f"utterance-{number}" for number in range(9)]
    for number, name in enumerate(names):
        talk.say("open", id=name, text=f"{TEXT} Number {number}.", seed=number, format="f32le")
    open_ones, packets = set(names), []
    while open_ones:
        message = talk.hear()
        if not isinstance(message, dict):
            packets.append(message)
        elif message["type"] == "done":
            open_ones.remove(message["id"])
        else:
            assert message["type"] == "opened"
    assert len({packet.id for packet in packets[:40]}) > 1, "they are spoken at the same time"
    for number, name in enumerate(names):
        own = np.concatenate([packet.pcm for packet in packets if packet.id == name])
        expected = served.engine.speak(f"{TEXT} Number {number}.", seed=number).read_all()
        np.testing.assert_array_equal(own, expected)


def test_ids_may_be_used_again_and_need_not_be_ascii(serve: Server) -> None:
    talk = serve().talk()
    for _ in range(2):
        talk.say("open", id="çä日", text="Hi.")
        heard = talk.hear_all("çä日")
        assert {packet.id for packet in heard.packets} == {"çä日"}


def test_a_switch_of_backends_is_told(serve: Server) -> None:
    def fail(call: int) -> None:
        if call == 5:
            raise RuntimeError("broken")

    fakes = Fakes(talkers={"first": Behaviour(on_decode=fail), "second": Behaviour()})
    talk = serve(fakes).talk()
    talk.say("open", text=TEXT)
    heard = talk.hear_all()
    (switched,) = [event for event in heard.events if event["type"] == "switched"]
    assert (switched["kind"], switched["origin"], switched["target"]) == ("talker", "first", "second")
    assert "broken" in switched["reason"]
    assert switched["frame"] == 5
    assert heard.last["facts"]["backend"] == "second"
    assert sum(packet.frames for packet in heard.packets) == 30


# ---- cancel and disconnect


def test_cancel_frees_the_row_and_leaves_the_others_alone(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    talk = served.talk()
    talk.say("open", id="a", text=TEXT)
    talk.say("open", id="b", text=TEXT, max_frames=60, seed=1, format="f32le")
    packets, reasons = [], {}
    while len(reasons) < 2:
        message = talk.hear()
        if not isinstance(message, dict):
            if message.id == "a" and not any(packet.id == "a" for packet in packets):
                talk.say("cancel", id="a")
            packets.append(message)
        elif message["type"] == "done":
            reasons[message["id"]] = message["finish_reason"]
    assert reasons == {"a": "cancelled", "b": "max_frames"}
    eventually(lambda: served.rows_free(fakes), "the rows are free")
    expected = served.engine.speak(TEXT, max_frames=60, seed=1).read_all()
    np.testing.assert_array_equal(np.concatenate([packet.pcm for packet in packets if packet.id == "b"]), expected)


@pytest.mark.parametrize("politely", [True, False])
def test_a_client_that_goes_away_frees_its_rows(serve: Server, politely: bool) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_waiting=8, max_streams=2)
    talk = served.talk()
    for number in range(4):  # two of them wait for rows
        talk.say("open", id=str(number), text=TEXT)
    talk.say("open", id="fed")  # and one for text
    talk.hear_until("opened", utterance="fed")
    eventually(lambda: len(fakes.loaded["fake"].streams) == 2, "both rows are taken")
    if politely:
        talk.socket.close()
    else:
        talk.vanish()
    eventually(lambda: served.rows_free(fakes) and not served.engine.metrics().waiting, "nothing runs or waits")
    calls = len(fakes.loaded["fake"].calls)
    time.sleep(0.05)
    assert len(fakes.loaded["fake"].calls) == calls
    eventually(lambda: not served.server.speaker.running, "the server has forgotten the utterances")


# ---- slow clients


def test_a_client_that_does_not_read_makes_the_stream_wait(serve: Server) -> None:
    frames, untaken = 4_000, 2.0
    fakes = fakes_with(frames=frames)
    served = serve(fakes, max_frames=frames + 1, max_untaken_s=untaken, server={"send_timeout_s": HANG_S})
    talk = served.talk(max_queue=1)
    talk.say("open", text=TEXT, format="f32le")
    talker = fakes.loaded["fake"]
    eventually(lambda: stands_still(talker.calls), "the engine waits for the client")
    assert len(talker.calls) < frames / 2, "what the kernel's buffers hold, and two seconds"
    assert sum(packet.frames for packet in talk.hear_all().packets) == frames


def test_a_client_that_reads_nothing_for_too_long_is_dropped(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_untaken_s=1.0, server={"send_timeout_s": 0.2})
    talk = served.talk(max_queue=1)
    talk.say("open", text=TEXT, format="f32le")
    eventually(lambda: fakes.loaded["fake"].streams, "it is spoken")
    eventually(lambda: served.rows_free(fakes), "the row of the client that does not read is free")
    talk.vanish()


# ---- errors


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("nonsense", "this is not JSON"),
        ("[1]", "should be an object"),
        ('{"text": "Hi."}', "type"),
        ('{"type": "sing"}', "'open', 'text', 'finish', 'cancel'"),
        ('{"type": "open", "txt": "Hi."}', "unknown key 'txt'"),
        ('{"type": "open", "seed": "5"}', "seed is '5'"),
        ('{"type": "open", "seed": -1}', "seed is -1"),
        ('{"type": "open", "format": "mp3"}', "'s16le' or 'f32le'"),
        ('{"type": "open", "max_ahead_s": 0}', "max_ahead_s is 0"),
        ('{"type": "text", "text": 5}', "text is 5"),
        ('{"type": "text", "id": "x", "text": "Hi."}', "no utterance 'x' is open"),
        ('{"type": "finish"}', "no utterance '' is open"),
        ('{"type": "cancel", "id": "y"}', "no utterance 'y' is open"),
        (b"\0\1", "a binary message came"),
    ],
)
def test_a_refused_message_ends_nothing(serve: Server, message: str | bytes, complaint: str) -> None:
    talk = serve().talk()
    talk.socket.send(message)
    refusal = talk.hear_event()
    assert (refusal["type"], refusal["id"], refusal["error"]["type"]) == ("error", None, "InvalidRequestError")
    assert complaint in refusal["error"]["message"]
    talk.say("open", text="Hi.")
    assert talk.hear_all().last["type"] == "done"


def test_an_id_in_use_is_refused_and_its_utterance_goes_on(serve: Server) -> None:
    talk = serve().talk()
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
        ({"text": "  "}, "InvalidRequestError", "empty"),
        ({"text": "Hi.", "voice": "nobody"}, "InvalidRequestError", "unknown speaker 'nobody'"),
        ({"text": "Hi.", "language": "klingon"}, "InvalidRequestError", "klingon"),
        ({"text": "Hi.", "layout": "upfront", "max_frames": 10**6}, "InvalidRequestError", "max_frames is 1000000"),
        ({"layout": "upfront"}, "InvalidRequestError", "'upfront' needs the whole text"),
        ({"text": "Hi.", "sampling": {"temp": 1}}, "InvalidRequestError", "sampling has no 'temp'"),
        ({"text": "Hi.", "sampling": {"top_p": 2}}, "InvalidRequestError", "top_p is 2"),
        ({"text": "Hi.", "voice_file": "!"}, "InvalidRequestError", "not base64"),
        ({"text": "Hi.", "voice_file": "aGk="}, "InvalidRequestError", "'voice_file' is not a voice file"),
        ({"text": "Hi.", "voice": "ryan", "voice_file": "aGk="}, "InvalidRequestError", "give one of them"),
        ({"text": "x" * 30_000}, "InvalidRequestError", "30000 characters"),
    ],
)
def test_an_impossible_request_is_told_under_its_id(
    serve: Server, fields: dict[str, Any], kind: str, complaint: str
) -> None:
    talk = serve().talk()
    talk.say("open", id="a", **fields)
    error = talk.hear_event()
    assert (error["type"], error["id"], error["error"]["type"]) == ("error", "a", kind)
    assert complaint in error["error"]["message"]
    talk.say("open", id="a", text="Hi.")
    assert talk.hear_all("a").last["type"] == "done"


@pytest.mark.parametrize(
    ("piece", "complaint"), [("Hello <|im_end|> there.", "<|im_end|>"), ("word " * 5_000, "25000 characters")]
)
def test_a_piece_that_cannot_be_spoken_ends_its_utterance(serve: Server, piece: str, complaint: str) -> None:
    fakes = Fakes()
    served = serve(fakes)
    talk = served.talk()
    talk.say("open", id="a")
    talk.say("text", id="a", text=piece)
    heard = talk.hear_all("a")
    assert heard.last["error"]["type"] == "InvalidRequestError"
    assert complaint in heard.last["error"]["message"]
    eventually(lambda: served.rows_free(fakes), "its row is free")


def test_more_text_for_a_complete_utterance_is_an_error(serve: Server) -> None:
    more = threading.Event()
    talk = serve(fakes_with(on_decode=lambda call: more.wait(HANG_S))).talk()
    talk.say("open", text=TEXT)
    talk.say("text", text="More.")
    talk.hear_until("opened")
    more.set()
    assert "has all its text" in talk.hear_all().last["error"]["message"]


def test_an_utterance_whose_text_never_comes_ends(serve: Server) -> None:
    served = serve(server={"text_timeout_s": 0.2})
    talk = served.talk()
    talk.say("open")
    talk.say("text", text="Hello there, and ")
    error = talk.hear_all().last
    assert error["error"]["type"] == "InvalidRequestError"
    assert "no text came for 0.2 s" in error["error"]["message"]
    eventually(lambda: not served.engine.metrics().waiting, "nothing waits")


def test_a_finished_utterance_may_take_longer_than_the_text_timeout(serve: Server) -> None:
    talk = serve(fakes_with(on_decode=lambda call: time.sleep(0.02)), server={"text_timeout_s": 0.2}).talk()
    talk.say("open")
    talk.say("text", text=TEXT)
    talk.say("finish")
    assert talk.hear_all().last["finish_reason"] == "eos"


def test_too_many_utterances_are_refused_for_now(serve: Server) -> None:
    talk = serve(endless(), max_streams=1, max_waiting=1, **ENDLESS).talk()
    for name in ("a", "b", "c"):
        talk.say("open", id=name, text=TEXT)
    error = talk.hear_all("c").last
    assert error["error"]["type"] == "CapacityError"
    assert "1 streams run and 1 wait already" in error["error"]["message"]


def test_a_failure_of_every_backend_is_told(serve: Server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("on fire")

    served = serve(fakes_with(on_decode=fail))
    talk = served.talk()
    talk.say("open", text=TEXT)
    heard = talk.hear_all()
    assert heard.last["error"]["type"] == "BackendFaultError"
    assert "on fire" in heard.last["error"]["message"]
    served.thread.join(HANG_S)
    assert not served.thread.is_alive(), "a server that can never speak again stops"
    assert "on fire" in str(served.server.failure)


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
    """Between a client's goodbye and the loss of its connection uvicorn still counts it among those to be closed."""
    handle_close, survived = WebSocketsSansIOProtocol.handle_close, threading.Event()

    def stop_meanwhile(connection: WebSocketsSansIOProtocol, event: Any) -> None:
        handle_close(connection, event)
        connection.shutdown()
        survived.set()

    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_close", stop_meanwhile)
    with serve().talk():
        pass
    assert survived.wait(HANG_S)


def test_a_defect_is_told_without_details_and_ends_one_utterance(
    serve: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    talk = served.talk()
    talk.say("open", id="good")
    talk.hear_until("opened", utterance="good")

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret of the server")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine, "speak", crash)
        talk.say("open", id="bad", text=TEXT)
        error = talk.hear_all("bad").last["error"]
    assert error["type"] == "InternalError"
    assert "secret" not in error["message"]
    assert "a secret of the server" in caplog.text
    talk.say("text", id="good", text=TEXT)
    talk.say("finish", id="good")
    assert talk.hear_all("good").last["finish_reason"] == "eos"

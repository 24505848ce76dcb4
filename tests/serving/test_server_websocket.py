"""``/v1/speak`` as a client of any language meets it: a real server, a real socket, the engine on fake backends."""

import json
import struct
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fake_backend import Behaviour, Fakes
from megatalker.engine import Chunk
from megatalker.serving.protocol.packets import PacketEncoder
from megatalker.serving.samples import SampleEncoder, SampleFormat
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S, eventually, stands_still

KINDS = ["s16le", "f32le", "pcm_mulaw", "pcm_alaw"]

# ---- what comes out


def test_float_audio_and_codes_equal_the_engine_s_own(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", text=TEXT, seed=5, format="f32le", return_codes=True)
    heard = talk.hear_all()
    chunks = list(shared.engine.speak(TEXT, seed=5, return_codes=True))
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
        "instruct": None,
    }
    assert (heard.packets[0].index, heard.packets[0].frames) == (0, 1)
    assert [packet.sample_offset for packet in heard.packets] == list(
        np.cumsum([0, *(len(packet.pcm) for packet in heard.packets)])[:-1]
    )
    done = heard.last
    assert (done["type"], done["finish_reason"]) == ("done", "eos")
    assert (done["facts"]["frames"], done["facts"]["seed"], done["facts"]["segments"]) == (30, 5, 1)
    assert done["facts"]["ttfc_s"] > 0


@pytest.mark.parametrize(("kind", "rate", "limit"), [("pcm_mulaw", None, {}), ("f32le", 48_000, {"max_frames": 9})])
def test_other_formats_and_rates_hold_the_speech(
    shared: Served, kind: SampleFormat, rate: int | None, limit: dict[str, int]
) -> None:
    talk = shared.talk()
    talk.say("open", id="a", text=TEXT, seed=5, format=kind, sample_rate=rate, return_codes=True, **limit)
    opened = talk.hear_event()
    encoder = SampleEncoder(kind, rate)
    assert (opened["format"], opened["sample_rate"]) == (kind, encoder.rate)
    samples, frames, flags = b"", 0, []
    while isinstance(message := talk.socket.recv(HANG_S), bytes):
        _, form, count, index, offset, groups, length = struct.unpack_from("<BBHIQHH", message)
        assert (message[20 : 20 + length], form & 127, index) == (b"a", KINDS.index(kind), len(flags))
        assert offset == len(samples) // encoder.sample_bytes
        samples += message[24 : len(message) - 2 * count * groups]
        frames, flags = frames + count, [*flags, form > 127]
    speech = shared.engine.speak(TEXT, seed=5, **limit).read_all()
    assert samples == encoder.encode(speech) + encoder.finish()
    assert frames == len(speech) // 1920
    assert flags == [False] * (len(flags) - 1) + [True]


@pytest.mark.parametrize("final", [False, True])
def test_samples_behind_the_last_frame_come_with_it_or_in_a_packet_of_their_own(final: bool) -> None:
    """At an end that was not foreseen the last chunk is gone already."""
    encoder, speech = PacketEncoder("a", SampleEncoder("pcm_alaw")), np.full(3840, 0.25, np.float32)
    chunks = [
        Chunk(
            index=place,
            pcm=speech[1920 * place :][:1920],
            frames=1,
            sample_offset=1920 * place,
            codes=None,
            requested_at=0.0,
            decoded_at=0.0,
            delivered_at=0.0,
            final=final and place == 1,
        )
        for place in range(2)
    ]
    packets = [packet for chunk in chunks for packet in encoder.push(chunk)] + encoder.finish()
    heads = [struct.unpack_from("<BBHIQHH", packet) for packet in packets]
    assert [head[2] for head in heads] == ([1, 1] if final else [1, 1, 0])
    assert [head[3] for head in heads] == list(range(len(packets)))
    assert [head[1] for head in heads] == [3] * (len(packets) - 1) + [131]
    samples = SampleEncoder("pcm_alaw")
    assert b"".join(packet[24:] for packet in packets) == samples.encode(speech) + samples.finish()


def test_a_cancelled_utterance_at_another_rate_just_ends(serve: Server) -> None:
    talk = serve(endless(), **ENDLESS).talk()
    talk.say("open", text=TEXT, format="pcm_mulaw")
    assert talk.hear_event()["sample_rate"] == 8_000
    talk.socket.recv(HANG_S)
    talk.say("cancel")
    while isinstance(message := talk.socket.recv(HANG_S), bytes):
        assert message[2:4] != bytes(2), "no chunk of the rest"
    assert json.loads(message)["finish_reason"] == "cancelled"


def test_an_impossible_rate_is_refused(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", text=TEXT, sample_rate=11_025)
    assert "sample_rate is 11025: expected one of 8000, 16000" in talk.hear_event()["error"]["message"]


@pytest.mark.parametrize("audio", ["s16le", "f32le"])
def test_the_packet_that_is_known_to_be_the_last_says_so(shared: Served, audio: str) -> None:
    talk = shared.talk()
    talk.say("open", text=TEXT, format=audio, return_codes=True, max_frames=9)
    final = [packet.final for packet in talk.hear_all().packets]
    assert final == [False] * (len(final) - 1) + [True]


def test_wishes_reach_the_engine(shared: Served) -> None:
    talk = shared.talk()
    wishes: dict[str, Any] = {"voice": "serena", "language": "english", "layout": "interleaved", "max_frames": 12}
    talk.say("open", text=TEXT, sampling={"temperature": 0.5, "seed": 9}, format="f32le", **wishes)
    heard = talk.hear_all()
    sampling = replace(shared.engine.checkpoint.sampling, temperature=0.5, seed=9)
    np.testing.assert_array_equal(heard.pcm(), shared.engine.speak(TEXT, sampling=sampling, **wishes).read_all())
    assert (heard.events[0]["seed"], heard.last["finish_reason"]) == (9, "max_frames")


def test_partial_sampling_without_a_seed_still_gets_a_random_one(shared: Served) -> None:
    talk = shared.talk()
    seeds = set()
    for _ in range(2):
        talk.say("open", text="Hi.", sampling={"temperature": 0.5})
        seeds.add(talk.hear_all().events[0]["seed"])
    assert len(seeds) == 2


def test_text_may_arrive_while_it_is_spoken(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", seed=5, format="f32le")
    talk.say("text", text="Hello there, this is ")
    first = talk.hear_until("opened")
    first.packets.append(talk.hear_packet())
    talk.say("text", text="a sentence of a few words.")
    talk.say("finish")
    heard = talk.hear_all()
    with shared.engine.speak(None, seed=5) as stream:
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


def test_ids_may_be_used_again_and_need_not_be_ascii(shared: Served) -> None:
    talk = shared.talk()
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

    def nothing_left() -> bool:
        now = served.engine.metrics()
        return not (now.active or now.waiting or fakes.loaded["fake"].streams)

    eventually(lambda: len(fakes.loaded["fake"].streams) == 2, "both rows are taken")
    if politely:
        talk.socket.close()
    else:
        talk.vanish()
    eventually(nothing_left, "nothing runs or waits")
    calls = len(fakes.loaded["fake"].calls)
    time.sleep(0.05)
    assert len(fakes.loaded["fake"].calls) == calls
    eventually(lambda: not served.server.service.running, "the server has forgotten the utterances")


# ---- slow clients


@pytest.mark.slow
def test_a_client_that_does_not_read_makes_the_stream_wait(serve: Server) -> None:
    frames, untaken = 4_000, 2.0
    fakes = fakes_with(frames=frames)
    served = serve(fakes, max_frames=frames + 1, max_untaken_s=untaken, server={"send_timeout_s": HANG_S})
    talk = served.talk(max_queue=1)
    talk.say("open", text=TEXT, format="f32le")
    talker = fakes.loaded["fake"]
    eventually(lambda: stands_still(talker.calls), "the engine waits for the client")
    assert len(talker.calls) < frames / 2, "socket buffers and two seconds hold no more"
    assert sum(packet.frames for packet in talk.hear_all().packets) == frames


def test_a_client_that_reads_nothing_for_too_long_is_dropped(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_untaken_s=1.0, server={"send_timeout_s": 0.2})
    talk = served.talk(max_queue=1)
    talk.say("open", text=TEXT, format="f32le")
    eventually(lambda: fakes.loaded["fake"].issued, "it is spoken")
    eventually(lambda: served.rows_free(fakes), "the row of the client that does not read is free")
    talk.vanish()

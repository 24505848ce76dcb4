"""Utterances without work hold nothing that others need, and open ones are bounded."""

import threading
from dataclasses import replace

import pytest

from engine_stage import TEXT, Opener, codes_of, fakes_with, order_of_prompts, plain_codes
from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import CapacityError
from waiting import HANG_S, eventually

FRAMES = 30
WORDS = TEXT.split(" ")
LIMIT_S = 0.4


def feed(stream: SpeechStream, words: list[str]) -> None:
    for word in words:
        stream.feed(f"{word} ")


def idle_streams(engine: Engine, seeds: range) -> list[SpeechStream]:
    """Fed three words each, all of which were said."""
    streams = [engine.speak(None, seed=seed, return_codes=True) for seed in seeds]
    for stream in streams:
        feed(stream, WORDS[:3])
    eventually(lambda: all(stream.facts().frames for stream in streams), "they have begun")
    return streams


def finish(stream: SpeechStream) -> list[tuple[int, ...]]:
    feed(stream, WORDS[3:])
    stream.finish()
    return codes_of(stream)


def alone(checkpoint: Checkpoint, seed: int, layout: str = "interleaved") -> list[tuple[int, ...]]:
    return plain_codes(checkpoint, TEXT, seed, layout, frames=FRAMES)


@pytest.mark.parametrize("batch", [True, False])
def test_streams_without_text_lend_their_rows_and_go_on_with_the_same_codes(
    open_engine: Opener, tiny_custom_voice: Checkpoint, batch: bool
) -> None:
    fakes = fakes_with(capabilities=replace(CAPABILITIES, batch=batch))
    engine = open_engine(fakes, max_streams=4)
    idle = idle_streams(engine, range(4))
    fifth = engine.speak(TEXT, seed=9, return_codes=True)
    assert codes_of(fifth) == alone(tiny_custom_voice, 9, "upfront")
    assert engine.metrics().lent == 1
    assert [finish(stream) for stream in idle] == [alone(tiny_custom_voice, seed) for seed in range(4)]
    assert engine.metrics().active == engine.metrics().idle == 0
    assert fakes.loaded["fake"].streams == {}


def test_all_of_them_go_on_though_there_are_fewer_rows(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    engine = open_engine(max_streams=2)
    streams = idle_streams(engine, range(7))
    assert engine.metrics().lent >= 5
    assert [finish(stream) for stream in streams] == [alone(tiny_custom_voice, seed) for seed in range(7)]


def test_nobody_lends_a_row_that_nobody_wants(open_engine: Opener) -> None:
    engine = open_engine(max_streams=2)
    streams = idle_streams(engine, range(1))
    engine.speak(TEXT).read_all()
    finish(streams[0])
    assert engine.metrics().lent == 0


def test_a_lent_row_may_move_to_another_backend(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    def fail(call: int) -> None:
        if len(fakes.loaded["first"].streams) == 1 and call > 20:
            raise RuntimeError("device lost")

    fakes = Fakes(talkers={"first": Behaviour(on_decode=fail), "second": Behaviour()})
    engine = open_engine(fakes, max_streams=1)
    (idle,) = idle_streams(engine, range(1))
    assert codes_of(engine.speak(TEXT, seed=9, return_codes=True)) == alone(tiny_custom_voice, 9, "upfront")
    assert finish(idle) == alone(tiny_custom_voice, 0)
    assert [switch.target for switch in idle.switches] == ["second"]


def test_streams_that_nobody_reads_lend_their_rows(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    engine = open_engine(max_streams=2, max_untaken_s=LIMIT_S)
    unread = [engine.speak(TEXT, seed=seed, return_codes=True) for seed in range(2)]
    eventually(lambda: all(stream.facts().frames * 0.08 >= LIMIT_S for stream in unread), "they are full")
    fifth = engine.speak(TEXT, seed=9, return_codes=True)
    assert codes_of(fifth) == alone(tiny_custom_voice, 9, "upfront")
    assert engine.metrics().lent >= 1
    assert [codes_of(stream) for stream in unread] == [alone(tiny_custom_voice, seed, "upfront") for seed in range(2)]


def test_streams_without_work_take_no_place_in_the_queue(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    engine = open_engine(max_streams=1, max_waiting=1)
    silent = [engine.speak(None, seed=seed, return_codes=True) for seed in range(5)]
    idle = idle_streams(engine, range(5, 7))
    eventually(lambda: engine.metrics().idle + engine.metrics().active == 7, "all are known to be without work")
    eventually(lambda: engine.metrics().waiting == 0, "all that was fed is said")
    assert codes_of(engine.speak(TEXT, seed=9, return_codes=True)) == alone(tiny_custom_voice, 9, "upfront")
    assert [finish(stream) for stream in idle] == [alone(tiny_custom_voice, seed) for seed in (5, 6)]
    for seed, stream in enumerate(silent):
        feed(stream, WORDS[:3])
        assert finish(stream) == alone(tiny_custom_voice, seed)


def test_a_stream_whose_first_text_finds_the_queue_full_ends(open_engine: Opener) -> None:
    go = threading.Event()
    engine = open_engine(fakes_with(on_decode=lambda call: go.wait(HANG_S)), max_streams=1, max_waiting=1)
    running, waiting, fed = engine.speak(TEXT), engine.speak(TEXT), engine.speak(None)
    fed.feed(TEXT)
    go.set()
    with pytest.raises(CapacityError, match="1 streams run and 1 wait already"):
        fed.read_all()
    for stream in (running, waiting):
        assert len(stream.read_all())


def test_open_streams_are_bounded_all_together_and_by_owner(open_engine: Opener) -> None:
    engine = open_engine(max_open=4, max_streams_per_owner=2)
    streams = [engine.speak_for(owner, None) for owner in ("a", "a", "b")]
    with pytest.raises(CapacityError, match=r"2 streams of this owner are open already.*max_streams_per_owner"):
        engine.speak_for("a", TEXT)
    streams.append(engine.speak_for("c", None))
    with pytest.raises(CapacityError, match=r"4 streams are open already.*max_open"):
        engine.speak_for("b", TEXT)
    streams[0].cancel()
    eventually(lambda: (seen := engine.metrics()).active + seen.waiting + seen.idle == 3, "it is forgotten")
    assert engine.metrics().cancelled == 1
    engine.speak_for("a", TEXT).read_all()


def test_where_all_places_are_taken_the_owner_with_most_gives_one_up(open_engine: Opener) -> None:
    engine = open_engine(max_open=4)
    greedy, few = [engine.speak_for("a", None) for _ in range(3)], engine.speak_for("b", None)
    assert len(engine.speak_for("c", TEXT).read_all()), "c has two fewer than a"
    with pytest.raises(CapacityError, match="this owner has more of them than others"):
        greedy[0].read_all()
    third = engine.speak_for("c", None)
    with pytest.raises(CapacityError, match="4 streams are open already"):
        engine.speak_for("c", TEXT)
    for stream in (*greedy[1:], few, third):
        stream.feed(TEXT)
        stream.finish()
        assert len(stream.read_all())


def test_an_unread_stream_wants_its_row_back_for_more_than_one_chunk(open_engine: Opener) -> None:
    fakes = fakes_with(frames=100)
    engine = open_engine(fakes, max_streams=1, max_untaken_s=4.0, max_chunk_frames=2)
    unread = engine.speak(TEXT, seed=1)
    eventually(lambda: unread.facts().frames * 0.08 >= 4.0, "it is full")
    assert len(engine.speak(TEXT, seed=2).read_all()) == 100 * 1920
    heard = 0
    while heard * 0.08 < 1.5:
        heard += next(unread).frames
    assert len(engine.speak(TEXT, seed=3).read_all()) == 100 * 1920
    assert order_of_prompts(fakes) == [1, 2, 3], "more than half of it is still there"
    assert len(unread.read_all()) == (100 - heard) * 1920
    assert order_of_prompts(fakes) == [1, 2, 3, 1]

"""Events bring what the scheduler sees of a stream up to date: nothing changes between two launches unnoticed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from engine_stage import TEXT, Opener, fakes_with
from fake_backend import CAPABILITIES, Behaviour, Fakes, ends_after
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.dispatcher import Dispatcher
from megatalker.engine.scheduler import StreamStatus
from megatalker.engine.utterance import Utterance
from megatalker.errors import BackendFaultError, CapacityError, InvalidRequestError
from megatalker.voices import Voice
from waiting import HANG_S, eventually, stands_still

WORDS = ["Hello there, ", "this is ", "a sentence ", "of a few words. ", "And this is ", "another one."]
SENTENCES = "The first one is here. A second one follows. Then the third is said. The fourth ends it."


@dataclass(frozen=True)
class Seen:
    """The facts of a stream that the scheduler sees."""

    status: StreamStatus
    deadline: float
    ungiven: int
    chunk_frames: int
    decode_at: float
    has_work: bool

    @classmethod
    def of(cls, one: Utterance) -> "Seen":
        has_work = one.idle_since is None
        return cls(one.status, one.deadline, one.ungiven, one.chunk_frames, one.decode_at, has_work)

    def may_become(self, now: "Seen") -> bool:
        """Whether a consumer that takes audio in its own thread explains the difference."""
        plain = replace(now, status=self.status, has_work=False, chunk_frames=1, decode_at=self.decode_at)
        return (
            self.status is StreamStatus.FULL
            and now.status in (StreamStatus.RUNNING, StreamStatus.WAITING)
            and plain == self
        )


@dataclass
class Watch:
    """Compares what the scheduler sees with what :meth:`Utterance.update` makes of it, before each launch."""

    statuses: set[StreamStatus] = field(default_factory=set)
    differences: list[tuple[Seen, Seen]] = field(default_factory=list)
    launches: int = 0

    def look(self, utterances: list[Utterance], now: float) -> None:
        self.launches += 1
        for one in utterances:
            before = Seen.of(one)
            one.update(now)
            after = Seen.of(one)
            self.statuses.add(before.status)
            if before != after and not before.may_become(after):
                self.differences.append((before, after))

    def check(self) -> None:
        """Nothing differed."""
        assert self.launches
        assert self.differences == []


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Look before each launch; in the end, nothing may have differed."""
    seen, launch = Watch(), Dispatcher.launch

    def look_and_launch(dispatcher: Dispatcher) -> bool:
        seen.look(dispatcher._state.utterances, dispatcher._state.clock())
        return launch(dispatcher)

    monkeypatch.setattr(Dispatcher, "launch", look_and_launch)
    yield seen
    seen.check()


@pytest.fixture
def begin(watch: Watch, open_engine: Opener) -> Opener:
    """Open an engine whose launches are watched."""
    return open_engine


def together(engine: Engine, count: int, **options: Any) -> list[SpeechStream]:
    """Return streams that the engine finds waiting all at once."""
    with engine.borrow_backends():
        return [engine.speak(TEXT, seed=seed, **options) for seed in range(count)]


def raise_at(*calls: int) -> Callable[[int], None]:
    def fail(call: int) -> None:
        if call in calls:
            raise RuntimeError("device lost")

    return fail


# ---- text


def test_streams_with_all_of_their_text_more_than_there_are_slots(begin: Opener, watch: Watch) -> None:
    for stream in together(begin(), 20):
        assert len(stream.read_all())
    assert {StreamStatus.WAITING, StreamStatus.RUNNING, StreamStatus.ENDED} <= watch.statuses


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_streams_of_several_segments(begin: Opener, layout: str) -> None:
    engine = begin(fakes_with(frames=9), max_segment_chars=24)
    with engine.borrow_backends():
        streams = [engine.speak(SENTENCES, seed=seed, layout=layout) for seed in range(3)]
    for stream in streams:
        stream.read_all()
        assert stream.facts().segments > 2


def test_streams_whose_text_is_fed_in_pieces_with_pauses(begin: Opener, watch: Watch) -> None:
    engine = begin(fakes_with(frames=None), max_segment_frames=15)
    streams = [engine.speak(None, seed=seed) for seed in range(3)]
    for word in WORDS:
        for stream in streams:
            stream.feed(word)
        time.sleep(0.03)
    for stream in streams:
        stream.finish()
    for stream in streams:
        assert len(stream.read_all())
    assert {StreamStatus.STARVED, StreamStatus.RUNNING, StreamStatus.ENDED} <= watch.statuses


def test_streams_without_text_or_with_text_that_says_nothing(begin: Opener) -> None:
    engine = begin()
    silent, dots = engine.speak(None), engine.speak("...")
    silent.finish()
    assert [len(stream.read_all()) for stream in (silent, dots)] == [0, 0]


def test_speech_that_is_too_short_and_is_said_again(begin: Opener) -> None:
    engine = begin(ends_after(2, 14, 2, 25), short_speech="repeat")
    for stream in together(engine, 2):
        stream.read_all()
    assert engine.metrics().repeated


@pytest.mark.parametrize("limit", [{"max_frames": 7}, {"max_segment_frames": 7}])
def test_streams_that_reach_a_limit(begin: Opener, limit: dict[str, int]) -> None:
    for stream in together(begin(fakes_with(frames=None), **limit), 3):
        assert len(stream.read_all())


# ---- playback and consumers


@pytest.mark.slow
def test_streams_that_stay_close_to_playback(begin: Opener, watch: Watch) -> None:
    engine = begin(fakes_with(frames=16))
    for stream in together(engine, 4, max_ahead_s=0.4):
        assert len(stream.read_all())


def test_consumers_that_take_no_audio_for_a_while(begin: Opener, watch: Watch) -> None:
    fakes = fakes_with(frames=60)
    engine = begin(fakes, max_untaken_s=0.4, max_streams=2)
    streams = together(engine, 3)
    eventually(lambda: stands_still(fakes.loaded["fake"].calls), "the engine waits for its consumers")
    for stream in streams:
        assert len(stream.read_all()) == 60 * 1920
    assert {StreamStatus.FULL, StreamStatus.RUNNING} <= watch.statuses


def test_consumers_in_an_event_loop_that_are_slow(begin: Opener, watch: Watch) -> None:
    engine = begin(fakes_with(frames=60), max_untaken_s=0.2)

    async def slowly(seed: int) -> int:
        frames = 0
        async with engine.speak(TEXT, seed=seed) as stream:
            await asyncio.to_thread(eventually, lambda: StreamStatus.FULL in watch.statuses, "nobody takes audio yet")
            async for chunk in stream:
                frames += chunk.frames
                await asyncio.sleep(0.005)
        return frames

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(slowly(seed) for seed in range(3)))

    assert asyncio.run(asyncio.wait_for(all_of_them(), HANG_S)) == [60] * 3


# ---- cancelled streams


def test_streams_that_are_cancelled_while_they_wait(begin: Opener) -> None:
    """For a slot, for text, and for their consumers."""
    fakes = fakes_with(frames=None)
    engine = begin(fakes, max_streams=1, max_untaken_s=0.4, max_frames=100_000)
    full, starved, waiting = engine.speak(TEXT), engine.speak(None), engine.speak(TEXT)
    eventually(lambda: stands_still(fakes.loaded["fake"].calls), "the engine waits")
    for stream in (waiting, starved, full):
        stream.cancel()
        eventually(lambda stream=stream: stream.finish_reason is not None, "it has ended")
    eventually(lambda: not fakes.loaded["fake"].streams, "nothing is left")


@pytest.mark.usefixtures("engine_clock")
@pytest.mark.parametrize("kind", ["talker", "codec"])
def test_streams_that_are_cancelled_during_a_launch(begin: Opener, watch: Watch, request: Any, kind: str) -> None:
    streams: list[SpeechStream] = []

    def hang_up(call: int) -> None:
        name = "fake" if kind == "talker" else "noise"
        if call >= 6 and len(fakes.loaded[name].calls[call]) == 3:
            streams[1].cancel()

    hangs_up, plain = Behaviour(on_decode=hang_up), Behaviour()
    talker, codec = (hangs_up, plain) if kind == "talker" else (plain, hangs_up)
    fakes = Fakes({"fake": talker}, {"noise": codec})
    engine = begin(fakes, max_chunk_frames=1)
    with engine.borrow_backends():
        streams += [engine.speak(TEXT, seed=seed) for seed in range(3)]
    for stream in streams:
        stream.read_all()
    assert [stream.finish_reason for stream in streams] == ["eos", "cancelled", "eos"]
    watch.check()


# ---- slots


@pytest.mark.parametrize("batch", [True, False])
def test_streams_whose_slots_another_owner_gets(begin: Opener, watch: Watch, batch: bool) -> None:
    capabilities = replace(CAPABILITIES, batch=batch)
    fakes = fakes_with(capabilities=capabilities, on_decode=lambda call: time.sleep(0.001))
    engine = begin(fakes, max_streams=4)
    many = [engine.speak_for("many", TEXT, seed=seed) for seed in range(6)]
    eventually(lambda: engine.metrics().active == 4, "they hold every slot")
    few = [engine.speak_for("few", TEXT, seed=seed) for seed in (7, 8)]
    for stream in [*few, *many]:
        assert len(stream.read_all())
    assert engine.metrics().lent


def test_streams_without_text_whose_slots_others_get(begin: Opener, watch: Watch) -> None:
    engine = begin(fakes_with(frames=20), max_streams=2)
    resting = [engine.speak(None, seed=seed, layout="interleaved") for seed in range(2)]
    for stream in resting:
        stream.feed("Hello there, this is ")
    eventually(lambda: engine.metrics().begun == 2, "they hold every slot")
    others = [engine.speak(TEXT, seed=seed) for seed in range(2)]
    for stream in others:
        assert len(stream.read_all())
    for stream in resting:
        stream.feed("a sentence.")
        stream.finish()
        assert len(stream.read_all())
    assert engine.metrics().lent


def test_streams_that_wait_too_long_for_a_slot(begin: Opener) -> None:
    engine = begin(fakes_with(frames=None, on_decode=lambda call: time.sleep(0.002)), max_streams=1, max_wait_s=0.1)
    running, waiting = engine.speak(TEXT, max_frames=200), engine.speak(TEXT)
    with pytest.raises(CapacityError):
        waiting.read_all()
    assert len(running.read_all())


# ---- backends that refuse or fail


def test_requests_that_a_backend_refuses(begin: Opener) -> None:
    def refuse(request: Any) -> None:
        if request.sampling.seed == 1:
            raise InvalidRequestError("not this one")

    engine = begin(fakes_with(on_prefill=refuse))
    first, refused, third = together(engine, 3)
    with pytest.raises(InvalidRequestError, match="not this one"):
        refused.read_all()
    assert all(len(stream.read_all()) for stream in (first, third))


def test_streams_for_which_a_backend_has_no_room(begin: Opener) -> None:
    """Neither for their prompts, nor for their next frames."""
    fakes = Fakes()
    engine = begin(fakes)

    def full(call: int) -> None:
        streams = fakes.loaded["fake"].streams
        if sum(len(stream.history) for stream in streams.values()) >= 60 and len(streams) > 1:
            raise CapacityError("no page is free")

    def no_slot(request: object) -> None:
        if len(fakes.loaded["fake"].streams) >= 3:
            raise CapacityError("no slot is free")

    fakes.talkers["fake"].on_decode, fakes.talkers["fake"].on_prefill = full, no_slot
    for stream in together(engine, 5):
        assert len(stream.read_all())
    assert engine.metrics().errors == 0


@pytest.mark.parametrize("calls", [(0,), (7,), (5, 6)])
@pytest.mark.parametrize("kind", ["talker", "codec"])
def test_streams_whose_backend_fails_and_is_replaced(begin: Opener, kind: str, calls: tuple[int, ...]) -> None:
    failing = {"first": Behaviour(on_decode=raise_at(*calls)), "second": Behaviour()}
    engine = begin(Fakes(talkers=failing) if kind == "talker" else Fakes(codecs=failing), max_chunk_frames=3)
    streams = together(engine, 4)
    streams.append(engine.speak(None, layout="interleaved"))
    for word in WORDS:
        streams[-1].feed(word)
    streams[-1].finish()
    for stream in streams:
        assert len(stream.read_all())
    assert engine.metrics().switches


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["talker", "codec"])
def test_streams_whose_backend_hangs_and_is_replaced(begin: Opener, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("megatalker.engine.guarded_calls.COLD_FACTOR", 1)
    released = threading.Event()

    def hang(call: int) -> None:
        if call == 3:
            released.wait(HANG_S)

    failing = {"first": Behaviour(on_decode=hang), "second": Behaviour()}
    fakes = Fakes(talkers=failing) if kind == "talker" else Fakes(codecs=failing)
    engine = begin(fakes, step_deadline_s=1.0)
    for stream in together(engine, 3):
        assert len(stream.read_all())
    assert engine.metrics().switches == 3
    released.set()


@pytest.mark.parametrize("kind", ["talkers", "codecs"])
def test_streams_when_no_backend_is_left(begin: Opener, kind: str) -> None:
    engine = begin(Fakes(**{kind: {"only": Behaviour(on_decode=raise_at(*range(100)))}}))
    for stream in together(engine, 3):
        with pytest.raises((BackendFaultError, InvalidRequestError)):
            stream.read_all()


# ---- voices


def test_streams_with_the_voice_of_a_recording(begin: Opener, tiny_base: Checkpoint) -> None:
    """Their codec first hears it, piece by piece."""
    generator, config = torch.Generator().manual_seed(1), tiny_base.config
    codes = torch.randint(0, 64, (90, config.num_code_groups), generator=generator)
    x_vector = torch.ones(config.talker.hidden_size)
    cloned = Voice(x_vector=x_vector, reference_codes=codes, reference_text_ids=(5, 6, 7))
    plain = replace(cloned, reference_codes=None, reference_text_ids=None)
    fakes = Fakes(codecs={"first": Behaviour(on_decode=raise_at(12)), "second": Behaviour()})
    engine = begin(fakes, checkpoint=tiny_base, max_chunk_frames=2)
    with engine.borrow_backends():
        streams = [engine.speak(TEXT, voice=voice, seed=seed) for seed, voice in enumerate([cloned, plain] * 3)]
    for stream in streams:
        assert len(stream.read_all())
    assert engine.metrics().switches

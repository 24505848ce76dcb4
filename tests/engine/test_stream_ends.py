"""Streams of an engine on fake backends: limits, refusals, and how streams and engines end."""

import gc
import logging
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engine_stage import TEXT, EngineClock, Opener, codes_of, fakes_with, plain_codes
from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import SpeechStream
from megatalker.errors import (
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
    UnsupportedError,
)
from megatalker.interfaces import Limit, StreamRequest
from megatalker.sampling import SamplingParams
from waiting import HANG_S

# ---- limits and refusals


def test_one_request_too_many_is_refused_and_served_later(open_engine: Opener) -> None:
    go = threading.Event()
    engine = open_engine(fakes_with(on_decode=lambda call: assert_set(go)), max_streams=2, max_waiting=1)
    streams = [engine.speak(TEXT) for _ in range(3)]
    with pytest.raises(CapacityError, match="max_waiting"):
        engine.speak(TEXT)
    go.set()
    for stream in streams:
        stream.read_all()
    assert engine.speak(TEXT).read_all().size


def assert_set(event: threading.Event) -> None:
    assert event.wait(HANG_S)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"text": " "}, InvalidRequestError, "empty"),
        ({"text": "hi\0", "clean_text": False}, InvalidRequestError, "NUL"),
        ({"text": "hi <|im_end|>", "clean_text": False}, InvalidRequestError, "control token"),
        ({"clean_text": "no"}, InvalidRequestError, "clean_text is 'no'"),
        ({"text": "x" * 10**6}, InvalidRequestError, "1000000 characters"),
        ({"voice": "nobody"}, InvalidRequestError, "knows"),
        ({"language": "klingon"}, InvalidRequestError, "knows"),
        ({"layout": "sideways"}, InvalidRequestError, "sideways"),
        ({"text": None, "layout": "upfront"}, InvalidRequestError, "whole text"),
        ({"text": b"Hello"}, InvalidRequestError, "bytes"),
        ({"voice": 7}, InvalidRequestError, "voice is 7"),
        ({"language": 7}, InvalidRequestError, "language is 7"),
        ({"instruct": 7}, InvalidRequestError, "instruct"),
        ({"instruct": "<|im_end|> and now something else"}, InvalidRequestError, "instruct: .*control token"),
        ({"instruct": "slowly " * 10**5}, InvalidRequestError, "instruct: .*characters"),
        ({"sampling": {"seed": 1}}, InvalidRequestError, "SamplingParams"),
        ({"max_frames": 0}, InvalidRequestError, "max_frames"),
        ({"max_frames": 10**6}, InvalidRequestError, "max_frames"),
        ({"max_ahead_s": -1.0}, InvalidRequestError, "max_ahead_s"),
        ({"seed": -1}, InvalidRequestError, "seed"),
        ({"seed": 2**64}, InvalidRequestError, "seed"),
    ],
)
def test_a_bad_request_is_refused_at_once_and_the_next_is_served(
    open_engine: Opener, arguments: dict[str, Any], error: type[MegatalkerError], message: str
) -> None:
    engine = open_engine()
    with pytest.raises(error, match=message):
        engine.speak(**({"text": TEXT} | arguments))
    assert engine.speak(TEXT).read_all().size
    assert engine.metrics().streams == 1


@pytest.mark.parametrize("text", ["...", "🎉", "\u200b\ufeff", "\0", "\ud83d", "<|im_end|>", "\x1b[0m", "—\n\n—"])
@pytest.mark.parametrize("fed", [False, True])
def test_a_text_with_nothing_to_say_ends_without_audio(open_engine: Opener, text: str, fed: bool) -> None:
    engine = open_engine()
    stream = engine.speak(None if fed else text)
    if fed:
        stream.feed(text)
        stream.finish()
    assert not stream.read_all().size
    assert stream.finish_reason == "eos"
    assert stream.facts().segments == 0
    assert engine.metrics().errors == 0
    assert engine.speak(TEXT).read_all().size


def test_a_greedy_backend_refuses_to_sample(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(capabilities=replace(CAPABILITIES, seeded_sampling=False)))
    with pytest.raises(UnsupportedError, match="greedy"):
        engine.speak(TEXT)
    assert engine.speak(TEXT, sampling=SamplingParams(do_sample=False, predictor_do_sample=False)).read_all().size


def test_max_frames_ends_the_stream_with_that_reason(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=50)
    stream = engine.speak(TEXT, max_frames=11)
    assert len(stream.read_all()) == 11 * FRAME_SAMPLES
    assert stream.finish_reason == "max_frames"
    assert len(engine.speak(TEXT).read_all()) == 50 * FRAME_SAMPLES


def test_frames_are_clamped_to_the_positions_of_the_backend_and_a_prompt_too_long_is_refused(
    open_engine: Opener,
) -> None:
    fakes = fakes_with(frames=None, capabilities=replace(CAPABILITIES, max_positions=40))
    engine = open_engine(fakes)
    stream = engine.speak("Hello")
    frames = len(stream.read_all()) // FRAME_SAMPLES
    assert frames + len(fakes.loaded["fake"].prefills[0].embeds) == 40
    assert stream.finish_reason == "incomplete"
    with pytest.raises(InvalidRequestError, match="40 positions"):
        engine.speak("Hello there " * 20)


def test_a_request_error_of_the_backend_ends_that_stream_only(open_engine: Opener) -> None:
    def refuse(request: StreamRequest) -> None:
        if request.sampling.seed == 13:
            raise InvalidRequestError("not this one")

    engine = open_engine(fakes_with(on_prefill=refuse))
    streams = [engine.speak(TEXT, seed=seed) for seed in (12, 13, 14)]
    assert streams[0].read_all().size == streams[2].read_all().size == 30 * FRAME_SAMPLES
    with pytest.raises(InvalidRequestError, match="not this one"):
        streams[1].read_all()
    assert (streams[1].finish_reason, engine.metrics().errors, engine.metrics().faulty) == ("error", 1, {})


def test_a_request_error_while_decoding_a_batch_finds_its_stream(open_engine: Opener) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)

    def refuse(call: int) -> None:
        if 2 in fakes.loaded["fake"].calls[call] and call > 5:
            raise InvalidRequestError("stream 2 is not welcome")

    fakes.talkers["fake"].on_decode = refuse
    with engine.borrow_backends():
        streams = [engine.speak(TEXT) for _ in range(3)]
    assert streams[0].read_all().size == streams[2].read_all().size == 30 * FRAME_SAMPLES
    with pytest.raises(InvalidRequestError, match="not welcome"):
        streams[1].read_all()


def test_a_backend_with_fewer_rows_than_promised_makes_streams_wait(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)

    def full(request: StreamRequest) -> None:
        if len(fakes.loaded["fake"].streams) >= 2:
            raise CapacityError("two rows only")

    fakes.talkers["fake"].on_prefill = full
    with engine.borrow_backends():
        streams = [engine.speak(TEXT) for _ in range(5)]
    for stream in streams:
        assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert "holds only 2 streams" in caplog.text


# ---- endings


def test_cancel_ends_the_iteration_and_frees_the_rows(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None)
    engine = open_engine(fakes, max_frames=100_000, runaway_guard=False)
    stream, other = engine.speak(TEXT), engine.speak(TEXT, max_frames=2000)
    next(stream)
    stream.cancel()
    stream.cancel()
    assert list(stream) == []
    assert stream.finish_reason == "cancelled"
    assert other.read_all().size == 2000 * FRAME_SAMPLES
    with engine.borrow_backends():
        assert fakes.loaded["fake"].streams == {}
    assert (engine.metrics().cancelled, engine.metrics().active) == (1, 0)


def test_cancelled_rows_are_free_before_another_frame_of_the_others(open_engine: Opener) -> None:
    fakes = fakes_with(frames=20)
    engine = open_engine(fakes)
    victim: list[SpeechStream] = []

    def cancel(call: int) -> None:
        if call == 5:
            victim[0].cancel()

    fakes.talkers["fake"].on_decode = cancel
    with engine.borrow_backends():
        victim.append(engine.speak(TEXT))
        other = engine.speak(TEXT)
    other.read_all()
    calls = fakes.loaded["fake"].calls
    assert 1 in calls[5]
    assert all(1 not in call for call in calls[6:])


def test_a_dropped_stream_is_cancelled(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False, max_waiting=0, max_streams=1)
    stream = engine.speak(TEXT)
    next(stream)
    del stream
    gc.collect()
    with engine.borrow_backends() if wait_until(lambda: engine.metrics().cancelled == 1) else ExitStack():
        pass
    assert engine.metrics().cancelled == 1


def wait_until(condition: Callable[[], bool]) -> bool:
    waiting = threading.Event()
    for _ in range(int(HANG_S / 0.01)):
        if condition():
            return True
        waiting.wait(0.01)
    return False


def test_leaving_a_with_block_cancels(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False)
    with engine.speak(TEXT) as stream:
        next(stream)
    assert stream.finish_reason == "cancelled"


def test_the_runaway_guard_ends_a_loop_and_can_be_switched_off(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    def loop(call: int, frames: list[Any]) -> object:
        return [replace(frame, codes=(1, *[2] * 15)) if frame.codes and call > 10 else frame for frame in frames]

    with caplog.at_level(logging.WARNING, "megatalker"):
        stream = open_engine(fakes_with(frames=400, spoil=loop)).speak(TEXT)
        frames = len(stream.read_all()) // FRAME_SAMPLES
    assert (stream.finish_reason, "runs away" in caplog.text) == ("runaway", True)
    assert 100 < frames < 130
    stream = open_engine(fakes_with(frames=400, spoil=loop), runaway_guard=False).speak(TEXT)
    assert (len(stream.read_all()) // FRAME_SAMPLES, stream.finish_reason) == (400, "eos")


def test_closing_ends_everything(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None)
    engine = open_engine(fakes, max_frames=100_000, max_streams=1, runaway_guard=False)
    running, waiting, feeding = engine.speak(TEXT), engine.speak(TEXT), engine.speak(None)
    next(running)
    engine.close()
    engine.close()
    for stream in (running, waiting, feeding):
        with pytest.raises(EngineClosedError):
            stream.read_all()
    feeding.feed("too late")
    for use in (lambda: engine.speak(TEXT), engine.warmup, lambda: engine.borrow_backends().__enter__()):
        with pytest.raises(EngineClosedError):
            use()
    assert fakes.loaded["fake"].closed.is_set()
    assert fakes.loaded["noise"].closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("megatalker-worker")]


def test_fifty_streams_half_cancelled_leave_no_rows_and_no_trace(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    chance = random.Random(1)
    fakes = fakes_with(frames=25)
    engine = open_engine(fakes, max_streams=6)
    expected = [plain_codes(tiny_custom_voice, TEXT, seed, "upfront", frames=25) for seed in range(50)]
    for _ in range(3):
        streams = [engine.speak(TEXT, seed=seed, return_codes=True) for seed in range(50)]
        victims = set(chance.sample(range(50), 25))
        for seed, stream in enumerate(streams):
            if seed in victims:
                for _ in range(chance.randrange(4)):
                    next(stream, None)
                stream.cancel()
            else:
                assert codes_of(stream) == expected[seed]
        with engine.borrow_backends():
            assert fakes.loaded["fake"].streams == {}
    metrics = engine.metrics()
    assert (metrics.streams, metrics.active, metrics.waiting, metrics.errors) == (150, 0, 0, 0)


def test_hundreds_who_hang_up_at_once_keep_nobody_waiting(open_engine: Opener, engine_clock: EngineClock) -> None:
    fakes, held, streams = Fakes(), list[int](), list[SpeechStream]()

    def note(call: int) -> None:
        held.append(len(fakes.loaded["fake"].streams))
        if call == 3:
            for stream in streams[1:]:
                stream.cancel()

    capabilities = replace(CAPABILITIES, max_streams=Limit.NONE)
    fakes.talkers["fake"] = Behaviour(frames=60, capabilities=capabilities, on_decode=note)
    engine = open_engine(fakes, max_streams=150)
    with engine.borrow_backends():
        streams += [engine.speak(TEXT, seed=seed) for seed in range(150)]
    assert len(streams[0].read_all())
    ends = [before - after for before, after in pairwise(held)]
    assert (max(held), held[-1]) == (150, 1)
    assert max(ends) <= 40, "16 after a launch of frames, 16 after one of audio"

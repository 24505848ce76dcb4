"""The small pieces of the engine, each on its own and without a clock on the wall."""

import asyncio
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.engine.runaway import MAX_PERIOD_FRAMES, PATIENCE_FRAMES, RunawayDetector, frame_levels
from megatalker.engine.speech.chunks import (
    BUSY_SHARE,
    SLACK_S,
    ChunkPolicy,
    ChunkQueue,
    PlaybackClock,
    hold_until,
    wake,
)
from megatalker.engine.speech.options import random_seed, stream_seed
from megatalker.engine.speech.outputs import Chunk


def test_playback_starts_with_the_first_chunk_and_counts_each_time_it_runs_dry() -> None:
    clock = PlaybackClock()
    assert clock.ahead(5.0) == 0
    clock.deliver(10.0, 1.0)
    clock.deliver(10.5, 1.0)
    assert (clock.ahead(11.0), clock.underruns) == (1.0, 0)
    clock.deliver(12.5, 1.0)  # half a second late
    assert (clock.dry_at, clock.underruns) == (13.5, 1)


def test_running_dry_while_the_caller_owes_text_is_not_an_underrun() -> None:
    clock = PlaybackClock()
    clock.deliver(0.0, 1.0)
    clock.excuse()
    clock.deliver(5.0, 1.0)
    assert (clock.underruns, clock.dry_at) == (0, 6.0)
    clock.deliver(9.0, 1.0)
    assert clock.underruns == 1


UNKNOWN, MANY = 0.0, 100
"""The time of a round before any launch was observed, and more frames than any chunk here has."""


def run_policy(rtf: float, frames: int, max_frames: int = 8, codec: float = 0.0) -> tuple[list[int], int]:
    """Return chunk sizes and underruns of a stream whose frames take the share ``rtf`` of their duration to make, of
    which their audio takes the share ``codec``.
    """
    policy, clock, sizes, pending, now = ChunkPolicy(max_frames), PlaybackClock(), list[int](), 0, 0.0
    round_s = rtf * FRAME_SECONDS
    for _ in range(frames):
        now += (1 - codec) * round_s
        pending += 1
        if pending >= policy.target:
            now += pending * codec * round_s
            clock.deliver(now, pending * FRAME_SECONDS)
            policy.plan_next(pending, clock.ahead(now), MANY, round_s)
            sizes.append(pending)
            pending = 0
    return sizes, clock.underruns


def test_chunks_double_from_one_frame_while_the_engine_is_fast() -> None:
    sizes, underruns = run_policy(rtf=0.01, frames=63)
    assert sizes == [1, 2, 4, 8, 8, 8, 8, 8, 8, 8]
    assert underruns == 0


def test_chunks_have_one_frame_while_costs_are_unknown() -> None:
    policy = ChunkPolicy(8)
    policy.plan_next(1, 10.0, MANY, UNKNOWN)
    assert policy.target == 1


def test_a_chunk_grows_only_as_far_as_playback_can_wait_for_it() -> None:
    """It is made a frame at a time, and one round of other streams may come before and after it."""
    policy, round_s = ChunkPolicy(8), 0.02
    for frames in range(1, 8):
        policy.plan_next(8, (frames + 2) * round_s + SLACK_S + 1e-6, MANY, round_s)
        assert policy.target == frames
    policy.plan_next(8, 0.0, MANY, round_s)
    assert policy.target == 1


def test_a_busy_engine_makes_chunks_larger_however_little_audio_is_in_hand() -> None:
    policy = ChunkPolicy(8)
    policy.plan_next(2, 0.0, 1, 1.01 * BUSY_SHARE * FRAME_SECONDS)
    assert policy.target == 4
    policy.plan_next(2, 0.0, MANY, 0.99 * BUSY_SHARE * FRAME_SECONDS)
    assert policy.target == 1


def test_an_engine_slower_than_playback_pauses_less_often_instead_of_sending_single_frames() -> None:
    sizes, underruns = run_policy(rtf=1.5, frames=31)
    assert sizes == [1, 2, 4, 8, 8, 8]
    assert underruns == 5


def test_a_chunk_is_no_longer_than_a_codec_step() -> None:
    policy = ChunkPolicy(8)
    policy.plan_next(4, 2.0, 3, 0.001)
    assert policy.target == 3


@given(rtf=st.floats(0.01, 0.999 * BUSY_SHARE), max_frames=st.integers(1, 64), codec=st.floats(0, 1))
def test_chunking_causes_no_underrun_while_the_engine_is_not_busy(rtf: float, max_frames: int, codec: float) -> None:
    sizes, underruns = run_policy(rtf, 300, max_frames, codec)
    assert underruns == 0
    assert sizes[0] == 1
    assert max(sizes) <= max_frames
    assert all(later <= 2 * earlier for earlier, later in pairwise(sizes))


def test_a_stream_waits_until_its_next_chunk_fits_the_lead() -> None:
    assert hold_until(dry_at=10.0, max_ahead_s=1.0, chunk_frames=5) == pytest.approx(10.0 - (1.0 - 5 * FRAME_SECONDS))
    assert hold_until(10.0, 0.001, 8) < 10.0, "a tiny lead must not starve playback"


def test_stream_seeds_begin_with_the_request_seed_and_differ() -> None:
    seeds = [stream_seed(7, index) for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert set(seeds[1:]).isdisjoint(stream_seed(8, index) for index in range(100))
    assert all(0 <= seed < 2**64 for seed in (*seeds, random_seed()))


@pytest.mark.parametrize("period", [1, 3, MAX_PERIOD_FRAMES])
def test_the_guard_reports_an_exact_loop_after_the_text_and_not_before_its_patience_ends(period: int) -> None:
    guard, frames = RunawayDetector(), [(index % period, 5) for index in range(PATIENCE_FRAMES + period)]
    assert all(guard.frame(codes, text_done=False) is None for codes in frames)
    reasons = [guard.frame(codes, text_done=True) for codes in frames]
    assert reasons[:-1] == [None] * (len(frames) - 1)
    assert reasons[-1] is not None


def test_one_different_frame_breaks_a_loop() -> None:
    guard = RunawayDetector()
    for index in range(10 * PATIENCE_FRAMES):
        assert guard.frame((0 if index % (PATIENCE_FRAMES - 1) else 1,), text_done=True) is None


def frames_of(level: float, count: int) -> np.ndarray:
    return np.full(count * FRAME_SAMPLES, level, np.float32)


def test_the_guard_reports_long_silence_after_speech() -> None:
    guard = RunawayDetector()
    assert guard.audio(frame_levels(frames_of(0.2, 4)), text_done=True) is None
    assert guard.audio(frame_levels(frames_of(1e-5, PATIENCE_FRAMES - 1)), text_done=True) is None
    assert guard.audio(frame_levels(frames_of(1e-5, 1)), text_done=True) is not None


def test_silence_before_the_end_of_the_text_and_a_voice_that_is_always_quiet_are_no_runaways() -> None:
    pausing, quiet = RunawayDetector(), RunawayDetector()
    pausing.audio(frame_levels(frames_of(0.2, 4)), text_done=False)
    assert pausing.audio(frame_levels(frames_of(0.0, 2 * PATIENCE_FRAMES)), text_done=False) is None
    assert pausing.audio(frame_levels(frames_of(0.0, PATIENCE_FRAMES // 2)), text_done=True) is None
    assert quiet.audio(frame_levels(frames_of(1e-5, 3 * PATIENCE_FRAMES)), text_done=True) is None


def chunk(index: int) -> Chunk:
    return Chunk(index, frames_of(0.1, 1), 1, index * FRAME_SAMPLES, None, 0.0, 0.0, 0.0)


def test_the_chunk_queue_hands_over_in_order_and_raises_its_error_last() -> None:
    chunk_queue = ChunkQueue()
    chunk_queue.put(chunk(0))
    chunk_queue.put(chunk(1))
    assert chunk_queue.finish("error", ValueError("broken"))
    assert not chunk_queue.finish("eos")
    taken = [chunk_queue.take(), chunk_queue.take()]
    assert [item.index for item in taken if item] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            chunk_queue.take()


def test_cancelling_drops_what_nobody_took_even_after_the_end() -> None:
    chunk_queue = ChunkQueue()
    chunk_queue.put(chunk(0))
    chunk_queue.finish("eos")
    assert not chunk_queue.finish("cancelled")
    assert chunk_queue.take() is None
    assert chunk_queue.reason == "eos"


def test_a_waiting_event_loop_is_woken_from_another_thread_and_a_cancelled_wait_leaves_nothing_behind() -> None:
    chunk_queue = ChunkQueue()

    async def consume() -> list[int]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(chunk_queue.take_async(), 0.01)
        assert not chunk_queue._waiters
        threading.Thread(target=lambda: (wake(chunk_queue.put(chunk(0))), chunk_queue.finish("eos"))).start()
        seen = []
        while (item := await chunk_queue.take_async()) is not None:
            seen.append(item.index)
        return seen

    assert asyncio.run(consume()) == [0]

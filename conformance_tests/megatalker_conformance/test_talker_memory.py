"""Memory does not grow with the streams and frames that a decoder has had."""

import tracemalloc
from itertools import pairwise

from megatalker_conformance.memory import in_use
from megatalker_conformance.promises import BOUNDED_MEMORY, broken
from megatalker_conformance.stage import Stage

CYCLES = 15
STREAMS = 3
FRAMES = 2
ALLOWED = {"resident memory": 4 << 20}
NOISE = 4096
"""Bytes that may come to be used while a few dozen streams come and go, and twice in a row by chance."""


def test_memory_does_not_grow_with_streams_and_frames(stage: Stage) -> None:
    """The same thing three times; growth that goes on is a leak."""
    tracemalloc.start()
    try:
        used = [in_use(stage.device)]
        for _ in range(3):
            for _ in range(CYCLES):
                _cycle(stage)
            used.append(in_use(stage.device))
    finally:
        tracemalloc.stop()
    for kind, limit in {**dict.fromkeys(used[0], NOISE), **ALLOWED}.items():
        if kind not in used[0]:
            continue
        growth = [after[kind] - before[kind] for before, after in pairwise(used[1:])]
        if min(growth) > limit:
            broken(
                BOUNDED_MEMORY,
                shown_by=f"{CYCLES} times, and as often again: prefill {STREAMS} prompts, {FRAMES} frames, release",
                expected=f"{kind} grows by at most {limit} bytes each time",
                found=f"it grows by {growth[0]} and {growth[1]} bytes",
            )


def _cycle(stage: Stage) -> None:
    pool, talker = stage.pool, stage.talker
    scripts = pool.going[: min(STREAMS, stage.house)]
    handles = talker.prefill([pool.request(script) for script in scripts])
    for step in range(FRAMES):
        talker.decode([pool.step(script, step, handle) for script, handle in zip(scripts, handles, strict=True)])()
    for handle in handles:
        talker.release(handle)

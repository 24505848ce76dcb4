"""Memory does not grow with the streams and frames that a decoder has had."""

from itertools import pairwise

from megatalker_conformance.memory import ALLOWED, in_use
from megatalker_conformance.promises import BOUNDED_MEMORY, broken
from megatalker_conformance.stage import Stage

STREAMS = 2
FRAMES = 2
CYCLES = 12
PERIODS = 3
WARM = 6
"""Cycles after which interpreter and allocators have taken what they need."""


def test_memory_does_not_grow_with_streams_and_frames(stage: Stage) -> None:
    """The same thing again and again: growth that goes on is a leak, growth that comes to an end is not."""
    _cycles(stage, WARM)
    used = [in_use(stage.device)]
    for _ in range(PERIODS):
        _cycles(stage, CYCLES)
        used.append(in_use(stage.device))
    for kind in used[0]:
        growth = [after[kind] - before[kind] for before, after in pairwise(used)]
        if min(growth) > ALLOWED[kind]:
            broken(
                BOUNDED_MEMORY,
                shown_by=f"{CYCLES} times, {PERIODS} times over: prefill {STREAMS} prompts, {FRAMES} frames, release",
                expected=f"{kind}: at some time no more than {ALLOWED[kind]} more than before",
                found=f"{kind} grow by {', '.join(map(str, growth))}",
            )


def _cycles(stage: Stage, count: int) -> None:
    pool, talker = stage.pool, stage.talker
    scripts = pool.going[: min(STREAMS, stage.house)]
    requests = [pool.request(script) for script in scripts]
    for _ in range(count):
        handles = talker.prefill(requests)
        for step in range(FRAMES):
            talker.decode([pool.step(script, step, handle) for script, handle in zip(scripts, handles, strict=True)])()
        for handle in handles:
            talker.release(handle)

"""Memory does not grow with the streams and frames that a decoder has had."""

from itertools import pairwise

from megatalker_conformance.memory import ALLOWED, in_use
from megatalker_conformance.promises import BOUNDED_MEMORY, broken
from megatalker_conformance.talker_harness import TalkerHarness

FRAMES = 2
CYCLES = 12
PERIODS = 3
WARM = 6
"""Cycles after which interpreter and allocators have taken what they need."""


def test_memory_does_not_grow_with_streams_and_frames(harness: TalkerHarness) -> None:
    """The same thing again and again: growth that goes on is a leak, growth that comes to an end is not."""
    _cycles(harness, WARM)
    used = [in_use(harness.device)]
    for _ in range(PERIODS):
        _cycles(harness, CYCLES)
        used.append(in_use(harness.device))
    for kind in used[0]:
        growth = [after[kind] - before[kind] for before, after in pairwise(used)]
        if min(growth) > ALLOWED[kind]:
            broken(
                BOUNDED_MEMORY,
                shown_by=f"{CYCLES} times, {PERIODS} times over: prefill, {FRAMES} frames, release; streams that go "
                "on, that continue another backend's, and that end",
                expected=f"{kind}: at some time no more than {ALLOWED[kind]} more than before",
                found=f"{kind} grow by {', '.join(map(str, growth))}",
            )


def _cycles(harness: TalkerHarness, count: int) -> None:
    pool, talker = harness.pool, harness.talker
    scenarios = [kind[0] for kind in (pool.going, pool.continued, pool.ending) if kind][: harness.house]
    requests = [pool.request(scenario) for scenario in scenarios]
    for _ in range(count):
        talker.release(*talker.prefill(requests[:1]))  # before its first frame
        handles = talker.prefill(requests)
        for step in range(FRAMES):
            going = [each for each in zip(scenarios, handles, strict=True) if step < pool.length(each[0])]
            talker.decode([pool.step(scenario, step, handle) for scenario, handle in going])()
        for handle in handles:
            talker.release(handle)

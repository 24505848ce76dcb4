"""Schedules of everything that the contract allows: each stream says what the oracle says alone, in any company."""

from collections.abc import Callable

import pytest

from megatalker.plugins.checked import CheckedTalker
from megatalker_conformance.promises import CONTINUATION, INDEPENDENCE, ISOLATION, WARMUP
from megatalker_conformance.schedule_plans import (
    alike,
    at_random,
    churn,
    continuations,
    ends_in_company,
    growing,
    lives,
    of_widths,
    upkeep,
    very_wide,
)
from megatalker_conformance.talker_harness import TalkerHarness

RANDOM = 20
"""Schedules."""
CALLS = 28
"""Calls of each schedule, for decoders whose wide calls cost little."""
FRAMES = 30
"""Frames of each schedule, for decoders without batches."""
CALLS_OF_ALL_WIDTHS = 64
GROWING = 12
"""Streams."""
TELLING_WIDTHS = (*range(1, 18), 24, 32, 33, 48, 64)
LIVES = 1050
"""Short streams: their handles have come round in any table of up to 1024."""
VERY_WIDE, VERY_WIDE_ALONE = 520, 110
"""Streams held by a decoder that holds more than 64, at most: with batches and without."""
PREPARED = 6
"""Calls of ``prepare``, at most."""


def test_streams_of_a_full_house_do_not_disturb_each_other(harness: TalkerHarness) -> None:
    """Calls of every width, of streams of as many lengths and ages as there are streams."""
    house = harness.house
    widths = range(1, house + 1) if harness.batch else [width for width in TELLING_WIDTHS if width <= house]
    times = max(1 + harness.batch, CALLS_OF_ALL_WIDTHS // (len(widths) if harness.batch else sum(widths)))
    writer = harness.writer("full house", house)
    order = [house, *writer.shuffled([*widths] * times), house]
    harness.hold_to(of_widths(writer, order, harness.pool.going), INDEPENDENCE)


def test_streams_that_end_leave_the_others_of_their_call_alone(harness: TalkerHarness) -> None:
    if not harness.pool.ending:
        pytest.skip("nothing ends a stream at will: the capabilities list neither forced_codes nor seeded_sampling")
    harness.hold_to(ends_in_company(harness.writer("ends", harness.crowd), max(36, harness.crowd)), INDEPENDENCE)


def test_streams_that_come_and_go_leave_nothing_behind(harness: TalkerHarness) -> None:
    harness.hold_to(churn(harness.writer("churn", harness.crowd), 60), INDEPENDENCE)


def test_streams_that_wait_are_told_from_a_thousand_that_come_and_go(harness: TalkerHarness) -> None:
    """Prompts of any number in a call, some refused; streams left out of hundreds of calls."""
    if harness.house < 2:
        pytest.skip("the backend holds one stream at a time")
    harness.hold_to(lives(harness.writer("lives", min(harness.house, 24)), LIVES), INDEPENDENCE)


def test_more_streams_than_64_are_told_apart(harness: TalkerHarness) -> None:
    limit = harness.talker.max_streams
    most = VERY_WIDE if harness.batch else VERY_WIDE_ALONE
    width = most if limit is None else min(most, limit)
    if width <= harness.house:
        pytest.skip(f"the backend holds {limit} streams, which other tests fill")
    harness.hold_to(very_wide(harness.writer("very wide", width)), INDEPENDENCE, width=width)


def test_a_stream_continues_from_emitted_frames(harness: TalkerHarness) -> None:
    """Same noise, same penalty, same positions, same minimum: a stream may begin on another backend."""
    harness.hold_to(continuations(harness.writer("continuations", harness.crowd)), CONTINUATION)


def test_requests_that_are_alike_are_told_apart(harness: TalkerHarness) -> None:
    """Another seed, another temperature, another row, another past; and nothing else."""
    harness.hold_to(alike(harness.writer("alike", harness.crowd)), INDEPENDENCE)


def test_no_schedule_changes_what_a_stream_says(harness: TalkerHarness) -> None:
    """Drawn at random.

    Prompts together and alone, forced and free frames, pauses, ends, releases, continuations, calls of any streams in
    any order, strided and double rows, other threads, frames waited for later.
    """
    cost = CALLS if harness.batch else FRAMES
    for number in range(RANDOM):
        writer = harness.writer(f"random {number}", harness.crowd)
        harness.hold_to(at_random(writer, cost, not harness.batch), INDEPENDENCE)


def test_a_cold_instance_says_the_same(harness: TalkerHarness) -> None:
    """Uses an instance whose buffers grow while it holds streams."""
    with harness.another() as cold:
        harness.hold_to(growing(harness.writer("cold", min(harness.crowd, GROWING))), WARMUP, talker=cold)


def test_warmup_and_prepare_change_nothing_for_streams_that_are_held(
    harness: TalkerHarness, load_early: Callable[[], CheckedTalker]
) -> None:
    """The warm-up is an early one, which may leave something for ``prepare``."""
    cold = load_early()
    try:
        harness.hold_to(upkeep(harness.writer("upkeep", min(harness.crowd, 4)), PREPARED), WARMUP, talker=cold)
    finally:
        cold.close()


def test_two_instances_share_nothing(harness: TalkerHarness) -> None:
    """A second one does something else between the calls of the first, and is closed."""
    with harness.another() as second:
        schedules = [
            at_random(harness.writer(f"instance {number}", min(harness.crowd, 4)), 12, not harness.batch)
            for number in (1, 2)
        ]
        harness.hold_side_by_side(second, schedules, ISOLATION)
    harness.hold_to(schedules[0], ISOLATION)

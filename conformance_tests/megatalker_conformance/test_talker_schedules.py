"""Schedules of everything that the contract allows: each stream says what the oracle says alone, in any company."""

import pytest

from megatalker_conformance.promises import CONTINUATION, INDEPENDENCE, ISOLATION, WARMUP
from megatalker_conformance.schedules import at_random, churn, continuations, ends_in_company, of_widths
from megatalker_conformance.stage import Stage

RANDOM = 20
"""Schedules."""
CALLS = 28
"""Of each, where a wide call costs little."""
FRAMES = 30
"""Of each, where it does not."""
CALLS_OF_ALL_WIDTHS = 64
TELLING_WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 64)


def test_streams_of_a_full_house_do_not_disturb_each_other(stage: Stage) -> None:
    """Calls of every width, of streams of as many lengths and ages as there are streams."""
    house = stage.house
    widths = range(1, house + 1) if stage.batch else [width for width in TELLING_WIDTHS if width <= house]
    times = max(1 + stage.batch, CALLS_OF_ALL_WIDTHS // (len(widths) if stage.batch else sum(widths)))
    writer = stage.writer("full house", house)
    order = [house, *writer.shuffled([*widths] * times), house]
    stage.hold_to(of_widths(writer, order, stage.pool.going), INDEPENDENCE)


def test_streams_that_end_leave_the_others_of_their_call_alone(stage: Stage) -> None:
    if not stage.pool.ending:
        pytest.skip("nothing ends a stream at will: the capabilities list neither forced_codes nor seeded_sampling")
    stage.hold_to(ends_in_company(stage.writer("ends", stage.crowd), max(36, stage.crowd)), INDEPENDENCE)


def test_streams_that_come_and_go_leave_nothing_behind(stage: Stage) -> None:
    stage.hold_to(churn(stage.writer("churn", stage.crowd), 60), INDEPENDENCE)


def test_a_stream_continues_from_emitted_frames(stage: Stage) -> None:
    """Same noise, same penalty, same positions, same minimum: a stream may begin on another backend."""
    stage.hold_to(continuations(stage.writer("continuations", stage.crowd)), CONTINUATION)


def test_no_schedule_changes_what_a_stream_says(stage: Stage) -> None:
    """Drawn at random.

    Prompts together and alone, forced and free frames, pauses, ends, releases, continuations, calls of any streams in
    any order, strided and double rows, other threads, frames waited for later.
    """
    cost = CALLS if stage.batch else FRAMES
    for number in range(RANDOM):
        writer = stage.writer(f"random {number}", stage.crowd)
        stage.hold_to(at_random(writer, cost, not stage.batch), INDEPENDENCE)


def test_a_cold_instance_says_the_same(stage: Stage) -> None:
    with stage.another() as cold:
        stage.hold_to(at_random(stage.writer("cold", min(stage.crowd, 4)), 10, not stage.batch), WARMUP, talker=cold)


def test_two_instances_share_nothing(stage: Stage) -> None:
    """A second one does something else between the calls of the first."""
    with stage.another() as second:
        schedules = [
            at_random(stage.writer(f"instance {number}", min(stage.crowd, 4)), 12, not stage.batch) for number in (1, 2)
        ]
        stage.hold_side_by_side(second, schedules, ISOLATION)

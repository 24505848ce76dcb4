"""Schedules repeat with their seed, and can be cut down to any part."""

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from megatalker_conformance.scenarios import ScenarioPool
from megatalker_conformance.schedule_plans import (
    alike,
    at_random,
    churn,
    continuations,
    ends_in_company,
    growing,
    of_widths,
)
from megatalker_conformance.schedules import (
    Action,
    DecodeStreams,
    ReleaseStream,
    ScheduleWriter,
    StartStreams,
    only,
    smaller,
    streams,
    tidied,
)


class FakePool:
    """Eight scenarios of three steps; the odd ones end by themselves, the last one is a continuation."""

    scenarios: Sequence[object] = (None,) * 8
    going: Sequence[int] = (0, 2, 4, 6)
    ending: Sequence[int] = (1, 3, 5, 7)
    continued: Sequence[int] = (7,)
    alike: Sequence[int] = (2, 4, 6)

    def length(self, number: int) -> int:
        return 3

    def rows(self, number: int) -> int:
        return 5

    def as_long_as(self, number: int) -> list[int]:
        return [number]


POOL = cast("ScenarioPool", FakePool())


def writer(seed: int, width: int = 5) -> ScheduleWriter:
    return ScheduleWriter(POOL, width, random.Random(seed), logits=True)


MAKERS = {
    "at random": lambda made: at_random(made, 30, False),
    "of widths": lambda made: of_widths(made, [*range(1, made.width + 1)] * 2, POOL.going),
    "ends": lambda made: ends_in_company(made, 12),
    "continuations": continuations,
    "alike": alike,
    "growing": growing,
    "churn": lambda made: churn(made, 9),
}


@pytest.mark.parametrize("width", [1, 2, 5, 40])
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in MAKERS.items()])
def test_schedules_do_what_can_be_done_and_repeat_with_their_seed(make: Any, width: int) -> None:
    schedule = make(writer(1, width))
    assert schedule == make(writer(1, width))
    assert tidied(schedule, POOL, width) == schedule


def test_other_seeds_draw_other_schedules() -> None:
    assert len({tuple(at_random(writer(seed), 10, False)) for seed in range(5)}) == 5


def test_each_width_is_a_call() -> None:
    widths = [9, *range(1, 10), *[9] * 9, 8]
    schedule = of_widths(writer(0, 9), widths, POOL.going)
    called = iter(len(action.streams) for action in schedule if isinstance(action, DecodeStreams))
    assert all(width in called for width in widths)  # in this order


def test_prompts_and_calls_grow() -> None:
    schedule = growing(writer(0, 3))
    assert [len(action.streams) for action in schedule if isinstance(action, DecodeStreams)] == [1, 2, 3]


def test_tidying_leaves_out_what_cannot_be_done() -> None:
    start = StartStreams(((0, 0), (1, 2)))
    schedule: list[Action] = [
        DecodeStreams((0,)),
        start,
        StartStreams(((2, 0), (0, 4))),
        *[DecodeStreams((0, 1, 2, 9))] * 4,
        ReleaseStream(9),
        ReleaseStream(0),
        DecodeStreams((0,)),
    ]
    assert tidied(schedule, POOL, 2) == [start, *[DecodeStreams((0, 1))] * 3, ReleaseStream(0)]


def test_a_schedule_without_some_of_its_streams_is_a_schedule() -> None:
    schedule: list[Action] = [
        StartStreams(((0, 0), (1, 2))),
        DecodeStreams((0,)),
        DecodeStreams((0, 1)),
        ReleaseStream(0),
        StartStreams(((2, 0),)),
    ]
    assert streams(schedule) == [0, 1, 2]
    assert only(schedule, [1]) == [StartStreams(((1, 2),)), DecodeStreams((1,))]


def test_smaller_calls_are_narrower_or_plainer() -> None:
    how = frozenset({"logits", "another thread"})
    assert list(smaller(DecodeStreams((1, 2), how))) == [
        DecodeStreams((2,), how),
        DecodeStreams((1,), how),
        DecodeStreams((1, 2), frozenset({"logits"})),
        DecodeStreams((1, 2), frozenset({"another thread"})),
    ]
    assert list(smaller(ReleaseStream(1))) == []

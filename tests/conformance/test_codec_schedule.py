"""Schedules of codecs can be cut down to any part and any width, and drawn at given widths."""

from types import SimpleNamespace
from typing import cast

from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import (
    CopyState,
    DecodeStates,
    Draw,
    DropState,
    OpenState,
    only,
    smaller,
    split_calls,
    states,
)

POOL = cast("CodePool", SimpleNamespace(drawn=4, sequences=[range(5)] * 4))
"""Four sequences of five frames."""


def test_calls_of_given_widths_are_of_states_that_are_there() -> None:
    widths = [1, 2, 9, 30, 30, 9]
    actions = Draw(POOL, 30, "0").of_widths(widths)
    assert actions == Draw(POOL, 30, "0").of_widths(widths) != Draw(POOL, 30, "1").of_widths(widths)
    left: dict[int, int] = {}
    for action in actions:
        if isinstance(action, OpenState):
            left[action.state] = len(POOL.sequences[action.sequence])
        elif isinstance(action, DecodeStates):
            for state, frames in action.frames:
                left[state] -= frames
    assert min(left.values()) >= 0
    assert sorted(len(action.frames) for action in actions if isinstance(action, DecodeStates)) == sorted(widths)


def test_wide_calls_are_split() -> None:
    wide = DecodeStates(((1, 2), (2, 1), (3, 4)), "int32")
    assert split_calls([wide, DropState(1)], 2) == [
        DecodeStates(((1, 2), (2, 1)), "int32"),
        DecodeStates(((3, 4),), "int32"),
        DropState(1),
    ]
    assert split_calls([wide], 3) == [wide]


def test_a_codec_schedule_without_some_of_its_states_is_a_schedule() -> None:
    actions = [
        OpenState(1, 0),
        DecodeStates(((1, 2),)),
        CopyState(2, 1, 0),
        DecodeStates(((1, 3), (2, 4)), "int32"),
        DecodeStates(((2, 1),)),
    ]
    assert states(actions) == [1, 2]
    assert only(actions, [1]) == [*actions[:2], DecodeStates(((1, 3),), "int32")]


def test_smaller_calls_of_codecs_have_fewer_states_fewer_frames_or_plainer_codes() -> None:
    calls = list(smaller(DecodeStates(((1, 3), (2, 1)), "int32", elsewhere=True)))
    assert calls[0] == DecodeStates(((1, 3), (2, 1)))
    assert DecodeStates(((2, 1),), "int32", True) in calls
    assert DecodeStates(((1, 1), (2, 1)), "int32", True) in calls
    assert list(smaller(OpenState(1, 0))) == []

"""Schedules of codecs can be cut down to any part and any width, and drawn at given widths."""

from types import SimpleNamespace
from typing import cast

from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import (
    Copy,
    DecodeCall,
    Draw,
    Drop,
    OpenCall,
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
        if isinstance(action, OpenCall):
            left[action.state] = len(POOL.sequences[action.sequence])
        elif isinstance(action, DecodeCall):
            for state, frames in action.frames:
                left[state] -= frames
    assert min(left.values()) >= 0
    assert sorted(len(action.frames) for action in actions if isinstance(action, DecodeCall)) == sorted(widths)


def test_wide_calls_are_split() -> None:
    wide = DecodeCall(((1, 2), (2, 1), (3, 4)), "int32")
    assert split_calls([wide, Drop(1)], 2) == [
        DecodeCall(((1, 2), (2, 1)), "int32"),
        DecodeCall(((3, 4),), "int32"),
        Drop(1),
    ]
    assert split_calls([wide], 3) == [wide]


def test_a_codec_schedule_without_some_of_its_states_is_a_schedule() -> None:
    actions = [
        OpenCall(1, 0),
        DecodeCall(((1, 2),)),
        Copy(2, 1, 0),
        DecodeCall(((1, 3), (2, 4)), "int32"),
        DecodeCall(((2, 1),)),
    ]
    assert states(actions) == [1, 2]
    assert only(actions, [1]) == [*actions[:2], DecodeCall(((1, 3),), "int32")]


def test_smaller_calls_of_codecs_have_fewer_states_fewer_frames_or_plainer_codes() -> None:
    calls = list(smaller(DecodeCall(((1, 3), (2, 1)), "int32", elsewhere=True)))
    assert calls[0] == DecodeCall(((1, 3), (2, 1)))
    assert DecodeCall(((2, 1),), "int32", True) in calls
    assert DecodeCall(((1, 1), (2, 1)), "int32", True) in calls
    assert list(smaller(OpenCall(1, 0))) == []

"""Failing schedules, of talkers and codecs alike, are shortened as much as possible, at a bounded price."""

from collections.abc import Callable, Iterator, Sequence

from megatalker_conformance import codec_schedule, schedules
from megatalker_conformance.shortening import shortened


def halves(number: int) -> Iterator[int]:
    yield from {number // 2, number - 1} - {number}


def short(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], effort: int) -> list[int]:
    """Shorten schedules whose actions are numbers, without streams."""
    return shortened(
        numbers,
        fails,
        streams=lambda _: (),
        only=lambda actions, _: list(actions),
        smaller=halves,
        cost=len,
        effort=effort,
    )


def test_what_is_not_needed_is_left_out_and_the_rest_made_small() -> None:
    def fails(numbers: Sequence[int]) -> bool:
        large = [number for number in numbers if number >= 10]
        return len(large) >= 2 and 3 in numbers

    actions = [*range(9), 50, *range(20), 70, *range(5)]
    assert short(actions, fails, 10_000) in ([3, 10, 10], [10, 3, 10], [10, 10, 3])


def test_what_one_thing_made_superfluous_is_left_out_as_well() -> None:
    """The 7 is needed as long as the 9 is large."""

    def fails(numbers: Sequence[int]) -> bool:
        return (9 in numbers and 7 in numbers) or 8 in numbers

    assert short([7, 1, 9], fails, 100) == [8]


def test_looking_stops_where_it_has_cost_its_effort() -> None:
    played: list[int] = []

    def fails(numbers: Sequence[int]) -> bool:
        played.append(len(numbers))
        return sum(numbers) > 90

    assert sum(short(range(20), fails, 60)) > 90
    assert sum(played) <= 60


def test_nothing_is_played_twice() -> None:
    played: list[tuple[int, ...]] = []

    def fails(numbers: Sequence[int]) -> bool:
        played.append(tuple(numbers))
        return sum(numbers) > 30

    short(range(20), fails, 10_000)
    assert len(set(played)) == len(played)


def test_of_talkers_two_streams_one_of_which_was_decoded_before() -> None:
    def fails(actions: Sequence[schedules.Action]) -> bool:
        started, decoded = set(schedules.streams(actions)), set[int]()
        for action in actions:
            if isinstance(action, schedules.DecodeStreams):
                if {3, 4} <= started and {3, 4} <= set(action.streams) and 4 in decoded:
                    return True
                decoded |= set(action.streams)
        return False

    schedule: list[schedules.Action] = [
        schedules.StartStreams(tuple((stream, stream) for stream in range(8))),
        schedules.DecodeStreams((0, 1), frozenset({"logits"})),
        schedules.DecodeStreams((4, 0, 1), frozenset({"strided rows"})),
        schedules.DecodeStreams((5, 6)),
        schedules.ReleaseStream(0),
        schedules.DecodeStreams((7, 4, 5, 3), frozenset({"logits", "another thread"})),
    ]
    found = shortened(
        schedule,
        fails,
        streams=schedules.streams,
        only=schedules.only,
        smaller=schedules.smaller,
        cost=len,
        effort=10_000,
    )
    assert found == [
        schedules.StartStreams(((3, 3), (4, 4))),
        schedules.DecodeStreams((4,)),
        schedules.DecodeStreams((4, 3)),
    ]


def test_of_codecs_a_copy_that_gets_three_frames_at_once() -> None:
    def fails(actions: Sequence[codec_schedule.Action]) -> bool:
        copies = {action.state for action in actions if isinstance(action, codec_schedule.Copy)}
        calls = (action for action in actions if isinstance(action, codec_schedule.DecodeCall))
        return any(state in copies and frames >= 3 for call in calls for state, frames in call.frames)

    schedule: list[codec_schedule.Action] = [
        *(codec_schedule.OpenCall(state, state) for state in range(9)),
        codec_schedule.DecodeCall(tuple((state, 5) for state in range(9)), "int32", elsewhere=True),
        codec_schedule.Copy(9, 4, 2),
        codec_schedule.Drop(2),
        codec_schedule.DecodeCall(((3, 12), (9, 7), (8, 1)), "int16"),
    ]
    found = shortened(
        schedule,
        fails,
        streams=codec_schedule.states,
        only=codec_schedule.only,
        smaller=codec_schedule.smaller,
        cost=codec_schedule.cost,
        effort=10_000,
    )
    assert found == [codec_schedule.Copy(9, 4, 2), codec_schedule.DecodeCall(((9, 3),))]

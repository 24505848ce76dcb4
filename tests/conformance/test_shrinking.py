"""What shows a mistake is shortened as far as it can be, at a bounded price."""

from collections.abc import Iterator, Sequence

from megatalker_conformance.codec_schedule import Copy, Decode, Open, only, smaller
from megatalker_conformance.shrinking import shortest


def halves(number: int) -> Iterator[int]:
    yield from {number // 2, number - 1} - {number}


def test_what_is_not_needed_is_left_out_and_the_rest_made_small() -> None:
    def fails(numbers: Sequence[int]) -> bool:
        large = [number for number in numbers if number >= 10]
        return len(large) >= 2 and 3 in numbers

    actions = [*range(9), 50, *range(20), 70, *range(5)]
    assert shortest(actions, fails, halves, len, 10_000) in ([3, 10, 10], [10, 3, 10], [10, 10, 3])


def test_looking_stops_where_it_has_cost_its_budget() -> None:
    played: list[int] = []

    def fails(numbers: Sequence[int]) -> bool:
        played.append(len(numbers))
        return sum(numbers) > 90

    short = shortest(range(20), fails, halves, len, 60)
    assert sum(short) > 90
    assert sum(played) <= 60


def test_a_schedule_without_some_of_its_states_is_a_schedule() -> None:
    actions = [Open(1, 0), Decode(((1, 2),)), Copy(2, 1, 0), Decode(((1, 3), (2, 4)), "int32"), Decode(((2, 1),))]
    assert only(actions, [1]) == [Open(1, 0), Decode(((1, 2),)), Decode(((1, 3),), "int32")]


def test_smaller_calls_have_fewer_states_fewer_frames_or_plainer_codes() -> None:
    calls = list(smaller(Decode(((1, 3), (2, 1)), "int32", elsewhere=True)))
    assert calls[0] == Decode(((1, 3), (2, 1)))
    assert Decode(((2, 1),), "int32", True) in calls
    assert Decode(((1, 1), (2, 1)), "int32", True) in calls
    assert list(smaller(Open(1, 0))) == []

"""Shortens a failing schedule of any kind: fewer streams, fewer calls, smaller calls, as long as it fails."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

ActionT = TypeVar("ActionT")
ItemT = TypeVar("ItemT")


def shortened(
    actions: Sequence[ActionT],
    fails: Callable[[Sequence[ActionT]], bool],
    *,
    streams: Callable[[Sequence[ActionT]], Sequence[int]],
    only: Callable[[Sequence[ActionT], Sequence[int]], list[ActionT]],
    smaller: Callable[[ActionT], Iterable[ActionT]],
    cost: Callable[[Sequence[ActionT]], int],
    effort: int,
) -> list[ActionT]:
    """The shortest failing schedule that was found.

    Args:
        actions: a failing schedule; actions are hashable.
        fails: plays any part of it.
        streams: the numbers of those that take part.
        only: a schedule without all streams but these.
        smaller: what an action may be replaced by; what leaves out most comes first.
        cost: of playing a schedule.
        effort: what all schedules played may cost.
    """
    best = list(actions)
    tried = {tuple(best)}

    def still(candidate: list[ActionT]) -> bool:
        nonlocal effort
        if tuple(candidate) in tried:
            return False
        tried.add(tuple(candidate))
        effort -= cost(candidate)
        return effort >= 0 and fails(candidate)

    def with_fewest_streams(whole: list[ActionT]) -> list[ActionT]:
        everybody = streams(whole)
        needed = _fewest(everybody, lambda some: still(only(whole, some)))
        return only(whole, needed) if len(needed) < len(everybody) else whole

    before: list[ActionT] = []
    while best != before:
        before = best
        best = _fewest(with_fewest_streams(best), still)
        for index in range(len(best)):
            best = _smallest(best, index, smaller, still)
    return best


def _fewest(items: Sequence[ItemT], enough: Callable[[list[ItemT]], bool]) -> list[ItemT]:
    """Leaves out runs of items, long ones first."""
    left = list(items)
    length = (len(left) + 1) // 2
    while length:
        start = 0
        while start < len(left):
            candidate = left[:start] + left[start + length :]
            if candidate and enough(candidate):
                left = candidate
            else:
                start += length
        length //= 2
    return left


def _smallest(
    actions: list[ActionT],
    index: int,
    smaller: Callable[[ActionT], Iterable[ActionT]],
    enough: Callable[[list[ActionT]], bool],
) -> list[ActionT]:
    """Makes the action of this index smaller."""
    while True:
        candidates = ([*actions[:index], action, *actions[index + 1 :]] for action in smaller(actions[index]))
        found = next(filter(enough, candidates), None)
        if found is None:
            return actions
        actions = found

"""Shortens what shows a mistake: a schedule that fails, to one that fails and has little left to leave out."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

ActionT = TypeVar("ActionT")


def shortest(
    actions: Sequence[ActionT],
    fails: Callable[[Sequence[ActionT]], bool],
    smaller: Callable[[ActionT], Iterable[ActionT]],
    cost: Callable[[Sequence[ActionT]], int],
    budget: int,
) -> list[ActionT]:
    """Leave out runs of actions, long ones first, then make single ones smaller, as long as it still fails.

    Args:
        actions: a schedule that fails.
        fails: plays one; every part of a schedule must be playable.
        smaller: what an action may be replaced by, the smallest first.
        cost: of playing a schedule.
        budget: what all schedules played may cost; then the shortest so far is good enough.
    """
    left = list(actions)

    def still(candidate: list[ActionT]) -> bool:
        nonlocal budget
        budget -= cost(candidate)
        return budget >= 0 and fails(candidate)

    length = len(left) // 2
    while length:
        start = 0
        while start < len(left):
            candidate = left[:start] + left[start + length :]
            if still(candidate):
                left = candidate
            else:
                start += length
        length //= 2
    for index in range(len(left)):
        while True:
            candidates = ([*left[:index], action, *left[index + 1 :]] for action in smaller(left[index]))
            found = next(filter(still, candidates), None)
            if found is None:
                break
            left = found
    return left

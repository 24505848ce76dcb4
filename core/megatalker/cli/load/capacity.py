"""Searches the largest load that an engine bears."""

from collections.abc import Awaitable, Callable

GRAIN = 16
"""The answer is exact to a sixteenth."""


async def largest(bears: Callable[[int], Awaitable[bool]], first: int, most: int) -> int:
    """The largest number up to ``most`` that ``bears`` answers with yes; 0 if there is none.

    Args:
        bears: tries a number; what it does not bear, it bears no more of.
        first: tried first, then doubled.
        most: no more is tried.
    """
    good, bad, trying = 0, most + 1, min(first, most)
    while bad - good > max(1, good // GRAIN):
        if await bears(trying):
            good = trying
        else:
            bad = trying
        trying = min(2 * good, most) if good and bad > most else (good + bad) // 2
        if trying == good:
            break
    return good

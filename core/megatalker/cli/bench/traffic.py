"""The patterns of load, as data: when requests begin. And the search for the largest load that is borne."""

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Pattern = Literal["streams", "rate", "burst"]
GRAIN = 16
"""A search is exact to one part in this many."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One load.

    ``streams``: endless streams at once, each followed by another where it ends (closed loop). ``rate``: requests a
    second at random moments, whatever becomes of earlier ones (Poisson, open loop). ``burst``: requests at one moment.
    """

    pattern: Pattern
    amount: float
    ramp_s: float = 0.0
    """The first requests of ``streams`` are spread over this time."""

    @property
    def endless(self) -> bool:
        """Speech goes on until the end of the measurement."""
        return self.pattern == "streams"

    def starts(self, seconds: float, seed: int) -> Iterator[float]:
        """Yield when requests begin, in seconds from the start, ascending."""
        if self.pattern != "rate":
            count = int(self.amount)
            yield from (self.ramp_s * index / count for index in range(count))
            return
        chance = random.Random(seed)
        moment = chance.expovariate(self.amount)
        while moment < seconds:
            yield moment
            moment += chance.expovariate(self.amount)

    def __str__(self) -> str:
        unit = {"streams": "endless streams", "rate": "requests a second", "burst": "at once"}
        return f"{self.amount:g} {unit[self.pattern]}"


async def largest(bears: Callable[[int], Awaitable[bool]], first: int, most: int) -> int:
    """Return the largest number up to ``most`` that ``bears`` answers with yes; 0 if there is none.

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

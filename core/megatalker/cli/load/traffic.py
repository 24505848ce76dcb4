"""Who calls when: the patterns of load, as data."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Pattern = Literal["streams", "rate", "burst"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One load.

    ``streams``: so many endless streams at once, each followed by another where it ends (closed loop). ``rate``: so
    many requests a second at random moments, whatever becomes of those before (Poisson, open loop). ``burst``: so many
    requests at one moment.
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
        """When requests begin, in seconds from the start, ascending."""
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

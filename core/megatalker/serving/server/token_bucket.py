"""A token bucket: how often something may happen, with what was not used saved up."""

import time
from collections.abc import Callable


class TokenBucket:
    """Holds at most ``burst`` tokens, is full at first, and gets ``per_second`` of them back. Not thread-safe.

    Args:
        per_second: tokens that come back in a second.
        burst: tokens that it holds at most.
        clock: seconds, monotonic.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._left, self._counted_at = float(burst), clock()

    def take(self) -> float:
        """Take one token and return 0; where there is none, return the seconds until there is one."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        if self._left < 1:
            return (1 - self._left) / self._per_second
        self._left -= 1
        return 0.0

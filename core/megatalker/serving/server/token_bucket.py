"""A token bucket: how often something may happen, with what was not used saved up."""

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_OWNERS = 1024
"""Buckets that are kept; the one used longest ago, which has filled up meanwhile, goes first."""


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


class OwnerBuckets:
    """A token bucket for each owner. Not thread-safe.

    Args:
        per_second: tokens that come back in a second, to each.
        burst: tokens that each holds at most.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of_owner(self, owner: str) -> TokenBucket:
        """The bucket of this owner."""
        bucket = self._buckets.pop(owner, None) or TokenBucket(self._per_second, self._burst)
        self._buckets[owner] = bucket
        if len(self._buckets) > MOST_OWNERS:
            self._buckets.popitem(last=False)
        return bucket

"""Learning rate by the clock: it depends on the part of the time that has gone by, not on the machine's speed."""

import math
import time


class TrainingClock:
    """Seconds of a run, continued where an earlier process stopped."""

    def __init__(self, seconds: float, before: float = 0.0) -> None:
        self._seconds, self._started = seconds, time.monotonic() - before

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def share(self) -> float:
        """0 at the start, 1 at the end."""
        return min(1.0, self.elapsed / self._seconds)

    def restart_after_preparation(self, elapsed: float) -> None:
        """Set the time: what happened since does not count."""
        self._started = time.monotonic() - elapsed


def cosine(share: float, highest: float, lowest: float, step: int, warm_up: int) -> float:
    """Learning rate: a linear warm-up by steps, then a half cosine by the clock."""
    rate = lowest + (highest - lowest) * 0.5 * (1 + math.cos(math.pi * share))
    return rate * min(1.0, (step + 1) / warm_up)


class Every:
    """True once per period."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True

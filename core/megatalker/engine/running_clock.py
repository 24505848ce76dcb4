"""A clock for deadlines that a pause of the process does not use up."""

import math
import threading
import time
from collections.abc import Callable


class RunningClock:
    """Seconds in which this process was running. Thread-safe.

    A process that is stopped (SIGSTOP, ``docker pause``, a debugger) or swapped out does not run, and neither does what
    it waits for in itself. Such a pause shows as a long gap between two readings, so something must read the clock
    regularly, at intervals well below ``longest_gap_s``.

    Args:
        source: seconds that pass in any case, monotonic.
        longest_gap_s: of a longer gap between two readings this much is counted. By default all of it.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic, longest_gap_s: float = math.inf) -> None:
        self._source, self._longest_gap_s = source, longest_gap_s
        self._lock = threading.Lock()
        self._read_at = source()
        self._paused_s = 0.0

    def __call__(self) -> float:
        """Seconds since some moment, pauses left out."""
        now = self._source()
        if now - self._read_at > self._longest_gap_s:
            return self._after_pause()
        if now > self._read_at:  # without the lock, on which threads would wait for each other at each reading
            self._read_at = now
        return now - self._paused_s

    def _after_pause(self) -> float:
        with self._lock:  # the first thread to read the clock counts the pause, once
            now = self._source()
            self._paused_s += max(0.0, now - self._read_at - self._longest_gap_s)
            self._read_at = now
            return now - self._paused_s

    @property
    def paused_s(self) -> float:
        """Seconds of pauses until now."""
        self()
        return self._paused_s

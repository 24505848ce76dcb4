"""Waiting for what another thread does."""

import time
from collections.abc import Callable, Sized

HANG_S = 120.0
"""Nothing here takes long; only something that hangs takes this long, however busy the machine is."""
PROCESS_S = 840.0
"""Seconds after which a process hangs; it may have to compile. Less than ``faulthandler_timeout`` of pyproject.toml, so
that only the test fails that waits for it."""


def eventually(condition: Callable[[], object], what: str) -> None:
    """Look again and again, ever less often, until ``condition`` holds; what is waited for needs the processor, too."""
    deadline, pause = time.monotonic() + HANG_S, 0.005
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(pause)
        pause = min(0.1, 1.2 * pause)


def stands_still(calls: Sized) -> bool:
    """Whether there are calls, and no more come for longer than a thread waits to be scheduled."""
    before = len(calls)
    for _ in range(10):
        time.sleep(0.1)
        if len(calls) != before:
            return False
    return before > 0

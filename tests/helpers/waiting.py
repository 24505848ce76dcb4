"""Waiting for what another thread does."""

import time
from collections.abc import Callable

HANG_S = 30.0
"""Nothing here takes long; only something that hangs takes this long."""


def eventually(condition: Callable[[], object], what: str) -> None:
    """Look now and then until ``condition`` holds: looking all the time would keep other threads from working."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)

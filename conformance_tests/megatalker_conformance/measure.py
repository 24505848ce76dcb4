"""Figures that tests compare with a bound: kept with the test's report, and printed at the end of the run; clocks."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch

_PREFIX = "megatalker:"


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds. On a CPU it counts processor time, since other processes may delay a call."""
    return time.process_time if device.type == "cpu" else time.perf_counter


@contextmanager
def waits_of_a_thread() -> Iterator[list[float]]:
    """Note how long a thread that sleeps for a millisecond at a time waits for a processor meanwhile, in seconds.

    Waits of less than 10 ms are left out: Python's own threads cause them.
    """
    waits: list[float] = []
    over = threading.Event()

    def sleep() -> None:
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            waited = time.perf_counter() - began
            if waited > 0.01:
                waits.append(waited)

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


class Measure:
    """Records and checks figures of one test.

    Args:
        node: the test; its ``user_properties`` carry the figures, to JUnit reports as well.
    """

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def __call__(self, name: str, value: float, limit: float) -> None:
        """Record ``value`` and fail unless it is at most ``limit``."""
        self._node.user_properties.append((_PREFIX + name, f"{value:.3g} (at most {limit:.3g})"))
        assert value <= limit, f"{name} is {value:.3g}, expected at most {limit:.3g}"


def measured_lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """One line for each figure of these reports."""
    return [
        f"{report.nodeid.rpartition('::')[2]}: {name.removeprefix(_PREFIX)} {value}"
        for report in reports
        for name, value in report.user_properties
        if name.startswith(_PREFIX)
    ]

"""Figures that tests compare with a bound: kept with the test's report, and printed at the end of the run."""

import time
from collections.abc import Callable, Iterable

import pytest
import torch

_PREFIX = "megatalker:"


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds. On a CPU it counts processor time, since other processes may delay a call."""
    return time.process_time if device.type == "cpu" else time.perf_counter


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

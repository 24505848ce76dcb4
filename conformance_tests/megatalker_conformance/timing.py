"""Time of a run by file, by test, and by oracles that were computed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from megatalker_conformance.kept import OracleClock

_ORACLE = "oracle-s"
SLOWEST = 5


def record_oracle_time(item: pytest.Item) -> None:
    """Book what oracles have cost since the last call on this test; its reports carry it, from other processes too."""
    if spent := OracleClock.take():
        item.user_properties.append((_ORACLE, spent))


def time_lines(reports: Sequence[pytest.TestReport]) -> list[str]:
    """The table, for reports of all phases of all tests; empty if nothing took time."""
    by_file: defaultdict[str, float] = defaultdict(float)
    by_test: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        by_file[report.nodeid.partition("::")[0].rpartition("/")[2]] += report.duration
        by_test[report.nodeid.rpartition("/")[2]] += report.duration
    oracles = sum(
        float(str(value))
        for report in reports
        if report.when == "teardown"  # its report has the properties of all phases
        for name, value in report.user_properties
        if name == _ORACLE
    )
    total = sum(by_file.values())
    if not total:
        return []
    lines = [f"{total:7.1f} s in all tests, of which {oracles:.1f} s for oracles that were not kept on disk yet"]
    lines += [f"{seconds:7.1f} s {name}" for name, seconds in _falling(by_file) if seconds > total / 100]
    lines += ["slowest tests:"]
    return lines + [f"{seconds:7.1f} s {name}" for name, seconds in _falling(by_test)[:SLOWEST]]


def _falling(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])

"""A short run of ``megatalker bench soak``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = pytest.mark.slow


def test_cancelled_streams_leave_nothing_behind_and_survivors_are_undisturbed(tmp_path: Path) -> None:
    found = report_of("soak", "--rounds", "2", "--frames", "8", folder=tmp_path)
    assert found["survivors_that_differ"] == 0
    assert found["still_active"] == found["still_waiting"] == 0
    assert found["engine"]["cancelled"] > 0

"""A short run of ``megatalker bench soak``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = pytest.mark.slow


def test_no_listener_disturbs_another_and_nothing_stays_occupied(tmp_path: Path) -> None:
    found = report_of("soak", "--streams", "8", "--seconds", "6", "--frames", "12", folder=tmp_path)
    assert found["codes_that_differ"] == 0
    assert found["errors"] == {}
    assert found["still_active"] == found["still_waiting"] == 0
    assert set(found["spoken"]) == {"hears", "cancels", "dawdles"}, "all manners occur"

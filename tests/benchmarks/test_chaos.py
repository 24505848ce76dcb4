"""A short run of ``megatalker bench chaos``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = pytest.mark.slow


def test_nobody_hears_that_engine_processes_die(tmp_path: Path) -> None:
    found = report_of("chaos", "kill", "crash", "--streams", "8", "--seconds", "6", "--frames", "20", folder=tmp_path)
    assert [case["event"] for case in found["cases"]] == ["kill", "crash"]
    for case in found["cases"]:
        assert case["spoken"] > 8
        assert case["codes_that_differ"] == case["lost"] == 0
        assert case["recovered"]

"""A short run of ``megatalker bench chaos``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = pytest.mark.slow


EVENTS = "kill", "crash", "front_end", "memory", "reload"


def test_nobody_hears_what_happens_to_the_processes_of_a_server(tmp_path: Path) -> None:
    found = report_of("chaos", *EVENTS, "--streams", "8", "--seconds", "6", "--frames", "20", folder=tmp_path)
    assert [case["event"] for case in found["cases"]] == list(EVENTS)
    for case in found["cases"]:
        assert case["spoken"] > 8
        assert case["codes_that_differ"] == case["lost"] == 0
        assert case["recovered"]

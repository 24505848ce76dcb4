"""A short run of ``megatalker bench soak``; the long one's result lies under ``benchmarks/results``."""

import json
from pathlib import Path

import pytest

from commands import megatalker

pytestmark = pytest.mark.slow


def test_cancelled_streams_leave_nothing_behind_and_survivors_are_undisturbed(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    options = ("--rounds", "2", "--frames", "8", "--output", str(report))
    done = megatalker("bench", "soak", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["survivors_that_differ"] == 0
    assert found["still_active"] == found["still_waiting"] == 0
    assert found["engine"]["cancelled"] > 0

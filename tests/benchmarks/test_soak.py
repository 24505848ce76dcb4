"""A short run of ``megatalker bench soak``; the long one's result lies under ``benchmarks/results``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark_runs import COMMAND
from waiting import PROCESS_S

pytestmark = pytest.mark.slow


def test_cancelled_streams_leave_nothing_behind_and_survivors_are_undisturbed(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    command = [
        sys.executable,
        "-c",
        COMMAND,
        "bench",
        "soak",
        "--rounds",
        "2",
        "--frames",
        "20",
        "--output",
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["survivors_that_differ"] == 0
    assert found["still_active"] == found["still_waiting"] == 0
    assert found["engine"]["cancelled"] > 0

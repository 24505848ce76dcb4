"""Runs a benchmark as a user would, small and quick."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from commands import COMMAND
from waiting import PROCESS_S

_QUICK = {"OMP_NUM_THREADS": "1", "MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}


def report_of(name: str, *options: str, folder: Path, **environ: str) -> Any:
    """What ``megatalker bench NAME`` writes to its ``--json``; it must exit well."""
    report = folder / "report.json"
    done = subprocess.run(
        [*COMMAND, "bench", name, *options, "--json", str(report)],
        env=os.environ | _QUICK | environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())

"""Runs a script of ``benchmarks`` as a user would, small and quick."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import PROCESS_S

_FOLDER = Path(__file__).parents[2] / "benchmarks"
_QUICK = {"OMP_NUM_THREADS": "1", "MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}


def report_of(script: str, *options: str, folder: Path, **environ: str) -> Any:
    """What ``script`` writes to its ``--json``; it must exit well."""
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, str(_FOLDER / script), *options, "--json", str(report)],
        env=os.environ | _QUICK | environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())

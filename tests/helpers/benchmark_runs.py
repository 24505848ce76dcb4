"""Runs a benchmark as a user would, small and quick."""

import json
from pathlib import Path
from typing import Any

from commands import megatalker

_QUICK = {"OMP_NUM_THREADS": "1", "MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}


def report_of(name: str, *options: str, folder: Path, **environ: str) -> Any:
    """Return the content of ``--json`` after a successful ``megatalker bench NAME``."""
    report = folder / "report.json"
    done = megatalker("bench", name, *options, "--json", str(report), cwd=folder, **(_QUICK | environ))
    assert done.returncode == 0, done.stderr
    return json.loads(report.read_text())

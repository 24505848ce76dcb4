"""Results of compilers, kept by their content, so that they are made once for all processes and all runs."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from megatalker.checkpoint.cache import cache_folder

ROOT = cache_folder("tests")


def kept(kind: str, inputs: Any, make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` filled for these inputs, now or before; others wait for the one that makes it.

    Args:
        kind: what is made, the name of a folder.
        inputs: everything that the result depends on, as JSON would hold it.
        make: fills an empty folder; leaves nothing behind if it fails.
    """
    place = ROOT / kind / hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_suffix(".lock")):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                make(made)
                made.rename(place)
    return place


def compiling(what: str) -> FileLock:
    """Return the lock to hold while Inductor compiles, so that other tests find the code in its cache."""
    ROOT.mkdir(parents=True, exist_ok=True)
    return FileLock(ROOT / f"{what}.lock")

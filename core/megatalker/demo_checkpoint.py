"""The embedded ``demo`` checkpoint: written once into the user's cache folder, then opened like any other folder."""

import os
import tempfile
from pathlib import Path

from megatalker.checkpoint_recipe import DEMO
from megatalker.errors import CheckpointError
from megatalker.random_checkpoint import write_checkpoint


def demo_folder() -> Path:
    """The folder of the demo checkpoint, written first if this user does not have it yet.

    Safe when several processes do it at once: each writes a folder of its own, and the first to finish names it.

    Raises:
        CheckpointError: the cache folder cannot be written.
    """
    folder = _cache_folder() / f"demo-{DEMO.fingerprint}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".demo-", dir=folder.parent) as scratch:
            written = write_checkpoint(Path(scratch) / folder.name, DEMO)
            _publish(written, folder)
    except OSError as error:
        raise CheckpointError(
            f"the demo checkpoint (35 MB) cannot be written to {str(folder.parent)!r}: {error}. "
            "Free some space, or set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder


def _publish(written: Path, folder: Path) -> None:
    try:
        written.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, with the same bytes
            raise


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megatalker"

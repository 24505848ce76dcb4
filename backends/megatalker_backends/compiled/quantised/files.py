"""Rounded layers on disk, beside compiled code: made once for a checkpoint, and read by later processes."""

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.cache import cache_folder

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of what is written; another one is written anew."""


def kept_folder(checkpoint: Checkpoint, weights: str) -> Path:
    """Return where the rounded layers of a checkpoint lie, whether they are there or not."""
    digest = hashlib.sha256(f"{FORMAT} {weights} {checkpoint.fingerprint}".encode())
    for path in sorted(checkpoint.folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_mtime_ns}".encode())
    return cache_folder("quantised", f"{weights}-{digest.hexdigest()[:20]}")


@contextmanager
def rounded_layers(checkpoint: Checkpoint, weights: str, write: Callable[[Path], None]) -> Iterator[Path]:
    """Hand out a folder with the rounded layers, which ``write`` makes in an empty folder where they are missing.

    The folder is complete or absent, so processes may share it. Where the cache folder cannot be written to, a
    temporary folder takes its place, which may be removed once its files are open.
    """
    kept = kept_folder(checkpoint, weights)
    if kept.is_dir():
        yield kept
        return
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", dir=kept.parent))
    except OSError as error:
        logger.warning("compiled: rounded weights cannot be kept in %s, and are made at each start: %s", kept, error)
        made = Path(tempfile.mkdtemp(prefix="megatalker-quantised-"))
    logger.info("compiled: rounding the weights to %s, once for this checkpoint; kept in %s", weights, kept)
    try:
        write(made)
        if made.parent == kept.parent:
            with suppress(OSError):  # another process was quicker
                made.rename(kept)
        yield kept if kept.is_dir() else made
    finally:
        shutil.rmtree(made, ignore_errors=True)

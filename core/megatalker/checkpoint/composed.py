"""Checkpoints that come as their difference from another one: put together once, in the cache, as official folders."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from megatalker.checkpoint.cache import cache_folder
from megatalker.errors import CheckpointError

_CARD = "MODEL_CARD.md"


def composed(name: str, base: Path, addition: Path) -> Path:
    """The folder of a checkpoint that is stored as ``addition`` to ``base``, for every program that opens folders.

    It has the files of ``base``, replaced by those of ``addition``; where that holds a ``difference.safetensors``, the
    difference is added to the weights. Folders lie below ``$XDG_CACHE_HOME/megatalker`` (by default ``~/.cache``),
    named by the content of what they are made of, and are made when they are first asked for.

    Raises:
        CheckpointError: the cache cannot be written.
    """
    cache = cache_folder(name)
    folder = cache / _content(base, addition)
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as scratch:
            made = Path(scratch) / folder.name
            _compose(base, addition, made)
            _move(made, folder)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {name!r} is put together in {cache}, which cannot be written: {error}; "
            "let XDG_CACHE_HOME name a folder that can"
        ) from error
    return folder


def _compose(base: Path, addition: Path, folder: Path) -> None:
    # torch is needed for what is not in the cache yet
    from safetensors.torch import load_file, save_file

    from megatalker.checkpoint.difference import DIFFERENCE, WEIGHTS, apply_difference

    shutil.copytree(base, folder, ignore=shutil.ignore_patterns(WEIGHTS, _CARD))
    shutil.copytree(addition, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(DIFFERENCE))
    for stored in addition.rglob(DIFFERENCE):
        part = stored.parent.relative_to(addition)
        tensors = apply_difference(load_file(base / part / WEIGHTS), load_file(stored))
        save_file(tensors, folder / part / WEIGHTS, metadata={"format": "pt"})


def _move(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster, and made the same
            raise


def _content(*sources: Path) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(source).as_posix()} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

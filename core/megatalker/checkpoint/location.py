"""Finds the folder of a checkpoint by what a user calls it."""

import re
from pathlib import Path

from megatalker.checkpoint.composed import composed
from megatalker.checkpoint.hub import ProgressCallback, download
from megatalker.checkpoint.modelscope import PREFIX, download_from_modelscope
from megatalker.errors import CheckpointError

__all__ = ["locate"]

_DEMO, _DEMO_BASE = Path(__file__).parent / "demo", Path(__file__).parent / "demo_base"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ACCEPTED = (
    "expected 'demo', 'demo-base', a folder in the official layout, or a hub id such as "
    f"Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice ({PREFIX}ID for the same on ModelScope)"
)


def locate(name_or_path: str | Path, *, progress: ProgressCallback | None = None) -> tuple[Path, str]:
    """Return the folder of a checkpoint and its name; download it first where needed (hub ids).

    Args:
        name_or_path: ``demo``, the voice that comes with the package, or ``demo-base``, which clones (put together in
            the cache at first: :func:`megatalker.checkpoint.composed.composed`); a folder, or a hub id
            ``organisation/name``, with ``modelscope:`` in front to take it from there. A ``Path`` is always a folder.
        progress: told about the bytes of a download; see :func:`megatalker.checkpoint.hub.download`.

    Raises:
        CheckpointError: it cannot be found or downloaded.
    """
    if name_or_path == "demo":
        return _DEMO, "demo"
    if name_or_path == "demo-base":
        return composed("demo-base", _DEMO, _DEMO_BASE), "demo-base"
    folder = _folder(name_or_path)
    if folder is not None:
        return folder, folder.resolve().name
    if isinstance(name_or_path, str) and _HUB_ID.fullmatch(repository := name_or_path.removeprefix(PREFIX)):
        fetch = download_from_modelscope if name_or_path.startswith(PREFIX) else download
        return fetch(repository, progress), name_or_path
    raise CheckpointError(f"checkpoint {str(name_or_path)!r}: there is no such folder; {_ACCEPTED}")


def _folder(name_or_path: str | Path) -> Path | None:
    try:
        folder = Path(name_or_path).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # a name that is too long, nobody's home, no path at all
        return None

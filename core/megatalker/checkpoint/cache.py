"""The user's cache folder."""

import os
from pathlib import Path


def cache_folder(*names: str) -> Path:
    """Return a folder in ``$XDG_CACHE_HOME/megatalker``, by default ``~/.cache/megatalker``; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("megatalker", *names)

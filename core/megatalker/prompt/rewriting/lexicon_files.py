"""Lexicons in files, which may change while they are in use."""

import logging
import os
import tomllib
from pathlib import Path
from typing import Any

from megatalker.errors import InvalidRequestError
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.settings.files import read_regular_file

__all__ = ["LexiconFile", "LexiconFolder", "read_lexicon"]

logger = logging.getLogger(__name__)

SUFFIX = "lexicon.toml"
"""The file for all voices of a folder; behind a voice's name and a full stop, that for this voice."""
MOST_BYTES = 1 << 24
"""Larger files are not read."""


def read_lexicon(path: Path) -> Lexicon:
    """Return the lexicon in a file.

    Raises:
        InvalidRequestError: it does not exist, cannot be read, or is no lexicon; the message says where.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(read_regular_file(path, MOST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequestError(f"lexicon {str(path)!r} does not exist") from error
    except OSError as error:
        raise InvalidRequestError(f"lexicon {str(path)!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"lexicon {str(path)!r} cannot be read: byte {error.start} is not UTF-8; save it as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"lexicon {str(path)!r} is no TOML: {error}") from error
    return Lexicon(tables, f"lexicon {str(path)!r}")


class LexiconFile:
    """A lexicon in a file that may change: each :meth:`current` has what the file holds. Thread-safe.

    Args:
        path: the file.
        required: ``False`` logs what is wrong with it now, as later, and has no words until it is repaired.

    Raises:
        InvalidRequestError: as :func:`read_lexicon`, where it is ``required``. Later faults are logged, and the lexicon
            stays as it was.
    """

    def __init__(self, path: Path, *, required: bool = True) -> None:
        self._path = path
        self._state = _state_of(path)
        self._lexicon = read_lexicon(path) if required else self._read(Lexicon({}))

    def current(self) -> Lexicon:
        """Return the lexicon, read again where the file has changed."""
        state = _state_of(self._path)
        if state != self._state:
            self._state = state
            self._lexicon = self._read(self._lexicon)
        return self._lexicon

    def _read(self, before: Lexicon) -> Lexicon:
        try:
            return read_lexicon(self._path)
        except InvalidRequestError as error:
            logger.error("%s; the lexicon stays as it was", error)
            return before


def _state_of(path: Path) -> object:
    try:
        facts = os.stat(path)  # noqa: PTH116 - a request has one, and Path takes three times as long
    except OSError as error:
        return error.errno
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


class LexiconFolder:
    """The lexicons in a folder of voices: each :meth:`find` has what the folder holds. Thread-safe.

    Args:
        folder: with ``lexicon.toml`` for all voices, and ``NAME.lexicon.toml`` for one; ``None``: no lexicons.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._state: object = None
        self._files: dict[str, LexiconFile] = {}
        """By the voice's folded name; that of all voices by ""."""
        self._look()

    def find(self, voice: str | None) -> Lexicon | None:
        """Return the words that go with a voice, and behind them those of all voices; ``None``: there are none."""
        if self._folder is None:
            return None
        if _state_of(self._folder) != self._state:
            self._look()
        files = self._files
        shared, own = files.get(""), None if not voice else files.get(voice.casefold())
        found = None if shared is None else shared.current()
        return found if own is None else own.current().over(found)

    def _look(self) -> None:
        if self._folder is None:
            return
        self._state = _state_of(self._folder)
        found: dict[str, LexiconFile] = {}
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            name = path.name.removesuffix(SUFFIX)
            if name.startswith(".") or (name and not name.endswith(".")):
                continue
            key = name.removesuffix(".").casefold()
            found[key] = self._files.get(key) or LexiconFile(path, required=False)
        self._files = found

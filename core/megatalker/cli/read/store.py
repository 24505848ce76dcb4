"""The finished work of a folder of recordings, kept so that nothing is spoken twice, however a command ended.

::

    OUT/
      01 Down the Rabbit-Hole.mp3    whole from the moment that it has its name
      .megatalker/
        finished.json                the digest of each finished file
        lock                         held by the command that works here
        KEY.npz                      speech of a part of a file that is not finished
"""

import fcntl
import io
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import InvalidRequestError

FOLDER = ".megatalker"


@dataclass(frozen=True, slots=True)
class KeptSpeech:
    """The speech of a part."""

    samples: NDArray[np.int16]
    """``[n]`` at 24 kHz."""
    words: tuple[SpokenWord, ...]
    """With times from the beginning of the part."""
    complete: bool = True
    """Whether it holds all of its text; ``False`` where no seed that was tried did."""


class SpeechStore:
    """A context manager: the folder is this process's alone while it is open.

    Raises:
        InvalidRequestError: the folder cannot be written to, or another command works there.
    """

    def __init__(self, out: Path) -> None:
        self.out, self._folder = out, out / FOLDER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self._folder / "lock").open("a")
        except OSError as error:
            raise InvalidRequestError(f"the folder {str(out)!r} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system gives it up with the process
        except OSError as error:
            self._lock.close()
            raise InvalidRequestError(
                f"another command writes to {str(out)!r}; wait for its end, or name another folder with --out"
            ) from error
        self._finished = self._read_finished()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def is_finished(self, name: str, digest: str) -> bool:
        """Whether there is this file, made of the same text in the same way."""
        return self._finished.get(name) == digest and (self.out / name).is_file()

    def part(self, key: str) -> KeptSpeech | None:
        """Return the speech that was kept under this key."""
        try:
            with np.load(self._path(key)) as kept:
                words = tuple(SpokenWord(**word) for word in json.loads(bytes(kept["words"]).decode()))
                return KeptSpeech(kept["samples"], words, bool(kept["complete"]))
        except FileNotFoundError:
            return None

    def has_part(self, key: str) -> bool:
        """Whether :meth:`part` finds one."""
        return self._path(key).is_file()

    def keep_part(self, key: str, speech: KeptSpeech) -> None:
        """Keep the speech of a part, whole or not at all."""
        words = json.dumps([asdict(word) for word in speech.words]).encode()
        buffer = io.BytesIO()
        fields: dict[str, Any] = {"words": np.frombuffer(words, np.uint8), "complete": np.array(speech.complete)}
        np.savez(buffer, samples=speech.samples, **fields)
        self.replace(self._path(key), buffer.getvalue())

    def finish(self, name: str, digest: str, keys: list[str]) -> None:
        """Remember a finished file; the parts that it is made of are no longer needed."""
        self._finished[name] = digest
        self.replace(self._folder / "finished.json", json.dumps(self._finished, indent=1).encode())
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete parts of texts that have been changed since."""
        for path in self._folder.glob("*.npz"):
            path.unlink(missing_ok=True)

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file, whole or not at all, so that it is there after a crash of the machine, too."""
        new = path.with_name(f".{path.name}.new")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.npz"

    def _read_finished(self) -> dict[str, str]:
        try:
            found = json.loads((self._folder / "finished.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return (
            {name: digest for name, digest in found.items() if isinstance(digest, str)}
            if isinstance(found, dict)
            else {}
        )

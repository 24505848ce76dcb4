"""Reading files that somebody else put there: no pipe is waited for, and nothing huge is read."""

import os
import stat
from pathlib import Path

from megatalker.errors import InvalidRequestError


class UnreadableVoiceError(InvalidRequestError):
    """The files of a voice cannot be read here and now; their content may be good."""


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: there is none, it is a pipe, a socket, a device or a folder, or it is larger than ``most_bytes``.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{str(path)!r} is no regular file")
        if facts.st_size > most_bytes:
            raise OSError(f"{str(path)!r} has {facts.st_size:,} bytes, expected at most {most_bytes:,}")
        return file.read(most_bytes + 1)

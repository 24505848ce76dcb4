"""Reading of files that other programs write: no pipe is waited for, nothing huge is read, and nothing half-written."""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MOST_BYTES = 1 << 20
"""The largest settings file."""

Read = TypeVar("Read")


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: there is none, it is a pipe, a socket, a device or a folder, or it is larger than ``most_bytes``.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file, but a folder, pipe, socket or device")
        if facts.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {facts.st_size:,} bytes, expected at most {most_bytes:,}")
        return file.read(most_bytes + 1)


def read_until_stable(read: Callable[[], Read], every_s: float, looks: int) -> Read | None:
    """Call ``read`` every ``every_s`` seconds until it returns the same twice; ``None``: never in ``looks`` calls."""
    found = read()
    for _ in range(looks):
        time.sleep(every_s)
        before, found = found, read()
        if before == found:
            return found
    return None

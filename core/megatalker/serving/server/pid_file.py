"""The file that tells which process serves a port, for ``megatalker reload``."""

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatalker.errors import InvalidRequestError

logger = logging.getLogger(__name__)


@contextmanager
def known_as(port: int) -> Iterator[None]:
    """Have :func:`server_process` find this process by its port within the block. It holds a lock on the file, so that
    the file of a process that is gone means nothing.
    """
    try:
        file = _file(port)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if file.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{str(file.parent)!r} belongs to another user")
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another host's server may have the same port
    except OSError as error:
        logger.warning("`megatalker reload` will not find this server: %s; send SIGHUP to its process instead", error)
        yield
        return
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)


def server_process(port: int) -> int:
    """Return the number of the process that serves this port, of this user on this machine.

    Raises:
        InvalidRequestError: there is none.
    """
    try:
        descriptor = os.open(_file(port), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise _nobody(port) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # its process is there
        return int(os.read(descriptor, 32))
    finally:
        os.close(descriptor)
    raise _nobody(port)


def _nobody(port: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"no `megatalker serve` of this user listens on port {port} of this machine; name its port with --port, or "
        "send SIGHUP to its process"
    )


def _file(port: int) -> Path:
    run = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(run) / f"megatalker-{os.getuid()}" / f"{port}.pid"

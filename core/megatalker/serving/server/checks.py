"""What strangers send is read and checked in the event loop where that is quick, else in a thread."""

from collections.abc import Callable
from typing import TypeVar

from megatalker.serving.background import OwnerThreads
from megatalker.serving.server.callers import current_request

QUICK_SIZE = 1 << 12
"""Bytes or characters of a message that are read in the event loop: a list of 400,000 numbers takes 0.6 s."""
QUICK_CHARS = 500
"""Characters of a text and its instruction that are checked in the event loop."""

T = TypeVar("T")


class Checks:
    """Threads for long messages and texts. Short ones do without: where many come at once, threads that wait for each
    other for the interpreter take longer than the checks.
    """

    def __init__(self) -> None:
        self._threads = OwnerThreads("check")

    async def run(self, check: Callable[[], T]) -> T:
        """Return the result of ``check``, which is called in a thread, one at a time for each owner."""
        return await self._threads.run(current_request().owner, check)

    async def read(self, size: int, read: Callable[[], T]) -> T:
        """Return what ``read`` makes of a message of this many bytes or characters."""
        return read() if size <= QUICK_SIZE else await self.run(read)

    def close(self) -> None:
        """Check nothing more in threads. Running work is finished."""
        self._threads.close()

"""How many connections each process of a server has, where all of them can read it."""

import mmap
from math import ceil
from pathlib import Path

SLOTS = 256
"""Processes that may be there at a time, those that are being replaced among them."""
NOT_SERVING = -1
_ABSENT = b"\xff" * 4
MOST_AHEAD = 4
"""A process with this many more connections than another leaves the next one to it."""


class Places:
    """Places for connections of this process among those of its server.

    Args:
        most: connections of all processes together, as long as none has more than its share.
        processes: that share them; each may have an equal part whatever the others have.
        file: from :meth:`create`; ``None``: this is the only process.
        number: of this process; that of another one that is over may come again.
    """

    def __init__(self, most: int, processes: int = 1, file: Path | None = None, number: int = 0) -> None:
        self._most, self._share, self._own = most, ceil(most / processes), number % SLOTS
        self._closed = False
        memory: bytearray | mmap.mmap = bytearray(_ABSENT * SLOTS)
        if file is not None:
            with file.open("r+b") as opened:
                memory = mmap.mmap(opened.fileno(), 0)
        self._counts = memoryview(memory).cast("i")

    @staticmethod
    def create(file: Path) -> None:
        """Write the file of a server."""
        file.write_bytes(_ABSENT * SLOTS)

    @staticmethod
    def forget(file: Path, number: int) -> None:
        """Count the connections of a process that has ended no longer."""
        with file.open("r+b") as opened:
            opened.seek(4 * (number % SLOTS))
            opened.write(_ABSENT)

    def hold(self, count: int) -> None:
        """Record that this process has ``count`` connections."""
        if not self._closed:
            self._counts[self._own] = count

    def close(self) -> None:
        """Record that this process takes no more connections; those that are open are counted no longer."""
        self._counts[self._own], self._closed = NOT_SERVING, True

    @property
    def limit(self) -> int:
        """Connections that this process may have now."""
        return max(self._share, self._most - sum(self._others()))

    def is_ahead(self, count: int) -> bool:
        """Whether another process has far fewer than ``count``."""
        return count > MOST_AHEAD + min(self._others(), default=count)

    def _others(self) -> list[int]:
        return [count for slot, count in enumerate(self._counts) if slot != self._own and count != NOT_SERVING]

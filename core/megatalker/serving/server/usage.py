"""Use that keys make of their limits, counted for all front ends of a server together."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

BUSY_S = 0.2
"""How long a process waits for another one's count, which takes some 50 microseconds."""
_TABLES = """
CREATE TABLE IF NOT EXISTS streams (key TEXT, process INTEGER, count INTEGER, PRIMARY KEY (key, process)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, left REAL, at REAL) WITHOUT ROWID;
"""


class KeyUsage:
    """Utterances that run, and requests of the last minute, by key. Thread-safe.

    Kept in SQLite, which several processes may write, one of which may die at any time. Where the count cannot be
    taken, for another process stands still in the middle of one or nothing can be stored, the request is let in, and
    the log says so: a limit must not close the server.

    Args:
        file: shared by the processes of a server; ``None``: there is one process, and memory is enough.
        process: its number.
        clock: seconds that all processes share, monotonic.
    """

    def __init__(self, file: Path | None = None, process: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._process, self._clock, self._lock = process, clock, threading.Lock()
        self._db = sqlite3.connect(file or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")  # whoever dies in the middle of a count leaves the file whole
        self._db.execute("PRAGMA synchronous=OFF")  # the file need not outlive the machine
        self._db.executescript(_TABLES)

    def take_stream(self, key: str, most: int | None) -> bool:
        """Count one more utterance, unless ``most`` run already; returns whether it may run."""
        with self._lock, _forgiving():
            done = self._db.execute(
                "INSERT INTO streams SELECT ?1, ?2, 1 WHERE ?3 IS NULL"
                " OR (SELECT coalesce(sum(count), 0) FROM streams WHERE key = ?1) < ?3"
                " ON CONFLICT DO UPDATE SET count = count + 1",
                (key, self._process, most),
            )
            return done.rowcount == 1
        return True

    def give_stream_back(self, key: str) -> None:
        """An utterance has ended."""
        with self._lock, _forgiving():
            self._db.execute("UPDATE streams SET count = count - 1 WHERE key = ? AND process = ?", (key, self._process))

    def take_request(self, key: str, per_minute: int) -> float:
        """Take one request of those that a key may ask in a minute, and return 0; where there is none, return the
        seconds until there is one. What was not asked for in the last minute is saved up, but no longer.
        """
        with self._lock, _forgiving(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            now = self._clock()
            row = self._db.execute("SELECT left, at FROM requests WHERE key = ?", (key,)).fetchone()
            before, at = row or (float(per_minute), now)
            left = min(per_minute, before + (now - at) * per_minute / 60.0)
            wait_s = max(0.0, (1 - left) * 60.0 / per_minute)
            left -= 0.0 if wait_s else 1.0
            self._db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (key, left, now))
            return wait_s
        return 0.0

    def forget_process(self, process: int) -> None:
        """A process is over, and so are its utterances."""
        with self._lock, _forgiving():
            self._db.execute("DELETE FROM streams WHERE process = ?", (process,))

    def close(self) -> None:
        """Count no more."""
        with self._lock, suppress(sqlite3.Error):
            self._db.close()


@contextmanager
def _forgiving() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        logger.error("what a key uses cannot be counted: %s", error)

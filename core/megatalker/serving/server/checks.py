"""Long messages and texts that clients send are read and checked in a thread, short ones in the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from megatalker.serving.background import named_pool, run_in
from megatalker.serving.server.callers import current_request

QUICK_SIZE = 1 << 12
"""Bytes or characters of a message that are read in the event loop: a list of 400,000 numbers takes 0.6 s."""
QUICK_CHARS = 500
"""Characters of a text and its instruction that are checked in the event loop."""

T = TypeVar("T")


class Checks:
    """Threads for long messages and texts, of which each owner has one at a time.

    Threads that compute in Python wait for its lock in no order, and the event loop waits among them: beside twenty
    that check long texts, what takes it a millisecond takes 80, and no more texts are checked than by one thread.
    """

    def __init__(self) -> None:
        self._threads = named_pool("check")
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    async def run(self, check: Callable[[], T]) -> T:
        """Return the result of ``check`` in a thread, once what this owner asked for before is done."""
        turn = self._turns.setdefault(current_request().owner, asyncio.Lock())
        await turn.acquire()
        done = asyncio.ensure_future(run_in(self._threads, check))
        done.add_done_callback(lambda _: turn.release())
        return await asyncio.shield(done)  # the thread works on where nobody waits for it any more

    async def read(self, size: int, read: Callable[[], T]) -> T:
        """Return what ``read`` makes of a message of this many bytes or characters."""
        return read() if size <= QUICK_SIZE else await self.run(read)

    def close(self) -> None:
        """Check nothing more. Running work is finished."""
        self._threads.shutdown(wait=False)

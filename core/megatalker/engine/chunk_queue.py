"""Carries chunks from the worker to the consumer, which may sit in any thread or event loop."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Condition

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.outputs import Chunk, FinishReason

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class ChunkQueue:
    """A queue of chunks with an end. The first :meth:`finish` decides how the stream ended.

    Args:
        max_untaken_s: from this much audio on it is :meth:`full <is_full>`. That is for whoever fills it to heed.
        on_room: called in the consumer's thread while a full queue is being emptied, until nothing is left.
    """

    def __init__(self, max_untaken_s: float | None = None, on_room: Callable[[], None] = lambda: None) -> None:
        self.reason: FinishReason | None = None
        self.error: Exception | None = None
        self.first_delivered_at: float | None = None
        self._changed = Condition()
        self._chunks: deque[Chunk] = deque()
        self._max_untaken_s, self._on_room = max_untaken_s, on_room
        self.untaken_s = 0.0
        """Seconds of audio that wait here."""
        self._was_full = False
        self._waiters: list[Waiter] = []

    def is_full(self, further_s: float = 0.0, share: float = 1.0) -> bool:
        """The consumer has not taken what it should have, or a ``share`` of that; with ``further_s`` of audio more,
        were it there.
        """
        return self._max_untaken_s is not None and self.untaken_s + further_s >= share * self._max_untaken_s

    def put(self, chunk: Chunk) -> list[Waiter]:
        """Hand a chunk over; dropped when the stream already ended. Threads that wait go on; returns the waiters of
        event loops, to :func:`wake`.
        """
        with self._changed:
            if self.reason is not None:
                return []
            self._chunks.append(chunk)
            self.untaken_s += chunk.frames * FRAME_SECONDS
            return self._notify()

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        """End the stream; ``False`` when it had ended before. Cancelling drops the chunks that nobody took."""
        with self._changed:
            if self.reason is not None:
                if reason == "cancelled":
                    self._chunks.clear()
                return False
            self.reason, self.error = reason, error
            if reason == "cancelled":
                self._chunks.clear()
            wake(self._notify())
            return True

    def take(self) -> Chunk | None:
        """The next chunk; waits for it. ``None`` after the last one; raises the stream's error there instead."""
        with self._changed:
            self._changed.wait_for(self._settled)
            return self._next()

    async def take_async(self) -> Chunk | None:
        """As :meth:`take`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._settled():
                    return self._next()
                waiter: Waiter = loop, loop.create_future()
                self._waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                with self._changed, contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)

    def _settled(self) -> bool:
        return bool(self._chunks) or self.reason is not None

    def _next(self) -> Chunk | None:
        if self._chunks:
            now = time.monotonic()
            if self.first_delivered_at is None:
                self.first_delivered_at = now
            chunk = self._pop()
            ended = not self._chunks and self.reason is not None and self.error is None
            return replace(chunk, delivered_at=now, final=chunk.final or ended)
        if self.error is not None:
            raise self.error
        return None

    def _pop(self) -> Chunk:
        chunk = self._chunks.popleft()
        self._was_full = self._was_full or self.is_full()
        self.untaken_s -= chunk.frames * FRAME_SECONDS
        if self._was_full and not self.is_full():
            self._was_full = bool(self._chunks)
            self._on_room()
        return chunk

    def _notify(self) -> list[Waiter]:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        return waiters


def wake(waiters: Iterable[Waiter]) -> None:
    """Let these go on: an event loop is called once for all of its waiters, since each call wakes its thread."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        loops.setdefault(loop, []).append(future)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

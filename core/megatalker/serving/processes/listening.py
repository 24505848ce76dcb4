"""Takes messages from a socket as they come: in a thread of its own, or in an event loop.

A thread beside a busy event loop can wait for tens of milliseconds. The loop gives Python's lock up at each of its
turns and has it back before the thread has woken, and :func:`sys.setswitchinterval` helps only where a callback takes
longer.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from megatalker.serving.background import report, start_thread

LOOK_S = 0.02
"""Time between two looks."""
MOST_IN_A_TURN = 16
"""Messages that are taken in one turn of an event loop, in which other connections wait."""


@dataclass(frozen=True)
class Work:
    """Work on messages, which its first exception ends."""

    name: str
    take: Callable[[bytes], None]
    """Called with each message."""
    look: Callable[[], None]
    """Called again and again, whatever comes."""
    fail: Callable[[BaseException], None]
    """Called with the exception, after that was logged."""


class ThreadListener:
    """Takes messages in a thread of its own, which alone uses the socket until :meth:`stop`."""

    def __init__(self, socket: "zmq.Socket[bytes]", work: Work) -> None:
        self._socket, self._work, self._stopped = socket, work, threading.Event()
        self._thread = start_thread(self._run, work.name, work.fail)

    def stop(self) -> None:
        """Return when no more messages are taken. From any thread; may be called again."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            look_at = time.monotonic() + LOOK_S
            while time.monotonic() < look_at and self._socket.poll(int(1e3 * LOOK_S)):
                self._work.take(self._socket.recv())
            self._work.look()


class LoopListener:
    """Takes messages in an event loop, whose thread alone uses the socket until :meth:`stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: "zmq.Socket[bytes]", work: Work) -> None:
        self._loop, self._socket, self._work = loop, socket, work
        self._descriptor = int(socket.get(zmq.FD))
        self._thread: int | None = None
        """The event loop's."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        loop.call_soon_threadsafe(self._begin)

    def stop(self) -> None:
        """Return when no more messages are taken. From any thread; may be called again."""
        if self._loop.is_running() and threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._end)
            self._stopped.wait()
        else:
            self._end()

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._loop.add_reader(self._descriptor, self._take)
        self._look()

    def _end(self) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
            if self._timer is not None:
                self._timer.cancel()
        self._stopped.set()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._do(self._work.look)

    def _take(self) -> None:
        """Take all that is there: the socket tells of messages once."""
        self._do(self._take_some)

    def _take_some(self) -> None:
        for _ in range(MOST_IN_A_TURN):
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._work.take(message)
        self._loop.call_soon(self._take)

    def _do(self, what: Callable[[], None]) -> None:
        if self._stopped.is_set():
            return
        try:
            what()
        except BaseException as error:
            self._end()
            report(self._work.name, error, self._work.fail)

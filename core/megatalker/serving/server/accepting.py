"""Takes the connections of a socket that the front ends of a server share."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sized

from megatalker.serving.background import start_task
from megatalker.serving.server.places import Places

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait to be taken, at most; the system may allow fewer."""
FULL_PAUSE_S = 1.0
"""Until the next try where a connection cannot be taken, because too many files are open."""
AHEAD_PAUSE_S = 0.002
"""A process that has more connections than others leaves one to them for this long, then takes it."""


class SharedSocketServer:
    """Takes connections one at a time, and leaves them to processes that have fewer.

    In the place of :class:`asyncio.Server`, which takes all that wait: of a burst the first process to wake has most
    then, so that its part of the places and of the processors is used up while others have nothing to do.

    Args:
        bound: the socket, which listens already.
        make: the protocol of a connection.
        tls: encrypts them.
        connections: all that this process has; protocols add themselves.
        places: for them.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        connections: Sized,
        places: Places,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound, self._make, self._tls, self._connections, self._places = bound, make, tls, connections, places
        self._beginning = set[asyncio.Task[None]]()
        self._pause: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._places.hold(len(connections))
        self._listen()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that serves the connections."""
        return self._loop

    def close(self) -> None:
        """Take no more connections; those that there are go on. May be called again."""
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()
            self._places.close()

    async def wait_closed(self) -> None:
        """Return at once: connections are waited for by who has them."""

    def _listen(self) -> None:
        self._loop.add_reader(self._bound.fileno(), self._take)

    def _take(self) -> None:
        count = len(self._connections) + len(self._beginning)
        self._places.hold(count)
        if self._places.is_ahead(count):
            self._stop_for(AHEAD_PAUSE_S, self._take_anyway)
        else:
            self._accept()

    def _take_anyway(self) -> None:
        self._listen()
        self._accept()

    def _stop_for(self, seconds: float, go_on: Callable[[], None]) -> None:
        self._loop.remove_reader(self._bound.fileno())
        self._pause = self._loop.call_later(seconds, go_on)

    def _accept(self) -> None:
        try:
            connection, _ = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was quicker, or the client is gone
        except OSError as error:
            logger.error("no connection can be taken for %g s: %s", FULL_PAUSE_S, error)
            self._stop_for(FULL_PAUSE_S, self._listen)
            return
        task = start_task(self._serve(connection), "connection")
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one
            logger.debug("a connection did not come about: %s", error)
            connection.close()

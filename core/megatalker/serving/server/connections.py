"""The part that HTTP connections and WebSockets share: deadlines for sending, and a share of all places."""

import asyncio
import logging
import time
from abc import abstractmethod
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from megatalker.serving.server.callers import RequestContext, address_owner
from megatalker.serving.server.places import Places
from megatalker.serving.server.problems import TooManyConnectionsError
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)

CONNECTION = "connection"
"""The key of ``scope["state"]`` under which an application finds the connection that a request came on."""
LINGER_S = 2.0
"""A client that is still sending when it is refused has this long to read why. Closing at once would reset the
connection, and the reset would throw the answer away."""

MOST_LINGERING = 2
"""All connections, those that linger among them, are at most this many times ``max_connections``."""
PAUSE_S = 0.05
"""Bytes that are only dropped are read at this interval, so that a client that pours them takes no time from others."""


class ServerConnection(asyncio.Protocol):
    """A connection that is closed where the client does not read what is sent, and that counts among all others.

    Goes before uvicorn's own class among the bases, which sets ``transport``, ``loop``, ``scope`` and ``connections``.
    """

    settings: ClassVar[ServerSettings]
    places: ClassVar[Places]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    """All connections of the server, this one among them."""
    address = ""
    """The client's address: the owner of a connection whose caller is not known yet."""
    made_at = 0.0
    _deadline: TimerHandle | None = None
    _lingering = False

    def connection_made(self, transport: Any) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self.places.hold(len(self.connections))
        self.made_at = time.monotonic()
        peer = transport.get_extra_info("peername")
        self.address = address_owner(str(peer[0]) if isinstance(peer, tuple) else "")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_deadline()
        scope: Any = getattr(self, "scope", None)
        if scope:
            scope["state"].pop(CONNECTION, None)  # each keeps the other alive
        super().connection_lost(exc)
        self.places.hold(len(self.connections))

    # ---- what the client does not read

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered; it has ``send_timeout_s`` for what is waiting."""
        super().pause_writing()
        self.start_send_deadline()

    def resume_writing(self) -> None:
        """The client has read nearly all of it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_deadline()

    def start_send_deadline(self) -> None:
        """Give the client up where it has not read what is waiting within ``send_timeout_s`` from now."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.settings.send_timeout_s, self._give_up)

    def _give_up(self) -> None:
        logger.warning("a client read nothing for %g s and is dropped", self.settings.send_timeout_s)
        self.transport.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def linger(self) -> TimerHandle:
        """Close after ``LINGER_S``, or when the client does; until then what it sends is dropped."""
        self._lingering = True
        self.transport.resume_reading()
        return self.loop.call_later(LINGER_S, self.transport.abort)

    def read_later(self) -> None:
        """Drop what came, and read on after a pause."""
        self.transport.pause_reading()
        self.loop.call_later(PAUSE_S, self.transport.resume_reading)

    # ---- its place among others

    @property
    def call(self) -> RequestContext | None:
        """The request or conversation that the connection is used for, once the application has begun it."""
        scope: Any = getattr(self, "scope", None)
        found: RequestContext | None = scope["state"].get("call") if scope else None
        return found

    @property
    def owner(self) -> str:
        """The key or address that the connection counts for."""
        return self.address if self.call is None else self.call.owner

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Whether no whole request has come since the last one was answered."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether no work is under way on the connection, though the client may be there."""

    @property
    def closes_after_answer(self) -> bool:
        """Whether :meth:`shutdown` now lets it answer what it was asked."""
        return False

    @abstractmethod
    def give_way(self, error: TooManyConnectionsError) -> None:
        """Tell the client why, and close."""

    def make_room(self) -> None:
        """A connection was made: where there are too many, close one that sends no request, of the address that has
        most of them. Where there is none, the new one may stay until its owner is known (:meth:`claim_place`).
        """
        most = self.places.limit
        if len(self.connections) <= most:
            return
        if len(self.connections) > MOST_LINGERING * most:
            told = [one for one in self.connections if one._lingering and not one.transport.is_closing()]
            if told:
                min(told, key=_age).transport.abort()
        everybody = self._open()
        if len(everybody) <= most:
            return
        logger.warning("more than %d connections", most)
        waiting = [one for one in everybody if one.waiting and one is not self]
        if waiting:
            ((crowded, _),) = Counter(one.address for one in waiting).most_common(1)
            min((one for one in waiting if one.address == crowded), key=_age).give_way(TooManyConnectionsError())
        elif _by_owner(everybody).most_common(1)[0][0] == self.address:
            self.give_way(TooManyConnectionsError())

    def claim_place(self) -> None:
        """Take a place now that the owner is known. Where there are too many connections, the owner that has most of
        them gives one up to an owner with at least two fewer; an idle one if it has any, else its newest.

        Raises:
            TooManyConnectionsError: no owner has that many more; this connection has no place.
        """
        everybody = self._open()
        if len(everybody) <= self.places.limit:
            return
        held = _by_owner(everybody)
        greatest, most = held.most_common(1)[0]
        if most < held[self.owner] + 1:  # itself is counted already
            raise TooManyConnectionsError()
        theirs = [one for one in everybody if one.owner == greatest and one is not self]
        idle = [one for one in theirs if one.idle]
        chosen = min(idle, key=_age) if idle else max(theirs, key=_age)
        chosen.give_way(TooManyConnectionsError())

    def _open(self) -> "list[ServerConnection]":
        """Return those that have not been told to go."""
        return [one for one in self.connections if not (one._lingering or one.transport.is_closing())]


def _age(connection: ServerConnection) -> float:
    return connection.made_at


def _by_owner(connections: Iterable[ServerConnection]) -> Counter[str]:
    return Counter(one.owner for one in connections)


def watch_closing(connections: Iterable[Any]) -> None:
    """Start the deadline of each connection that is closing: it stays open until the client has read what is waiting.
    To be called now and then.
    """
    for connection in connections:
        if connection.transport.is_closing():
            connection.start_send_deadline()

"""Connections before there is a request: how many may be open, and how long a request may take to arrive."""

import asyncio
import logging
from asyncio import TimerHandle
from http import HTTPStatus
from typing import ClassVar

from fastapi.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.serving.server.problems import respond
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)


class HttpConnection(HttpToolsProtocol):
    """A connection that has ``request_timeout_s`` for each whole request, among at most ``max_connections``.

    When there are too many, the one that has waited longest for a whole request makes room: idle connections lock
    nobody out. Where every connection is busy the newcomer is told to try again.
    """

    settings: ClassVar[ServerSettings]
    waiting: ClassVar[dict["HttpConnection", TimerHandle]]
    """Connections without a whole request, those that have waited longest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            logger.warning("more than %d connections", self.settings.max_connections)
            next(iter(self.waiting), self)._refuse(
                CapacityError("too many connections are open; try again, or raise the server's setting max_connections")
            )
        if not transport.is_closing():
            self._expect_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_request()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else another request came meanwhile
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self not in self.waiting:
            self.waiting[self] = self.loop.call_later(self.settings.request_timeout_s, self._lose_patience)

    def _expect_nothing(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _lose_patience(self) -> None:
        self._refuse(
            InvalidRequestError(
                f"no whole request came within {self.settings.request_timeout_s:g} s; send it faster, "
                "or raise the server's setting request_timeout_s"
            ),
            HTTPStatus.REQUEST_TIMEOUT,
        )

    def _refuse(self, error: Exception, status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE) -> None:
        self._expect_nothing()
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(_raw(respond(error, status)))
        self.transport.close()


def http_connection(settings: ServerSettings) -> type[HttpConnection]:
    """The class of one server's connections, as uvicorn wants it."""
    return type("HttpConnection", (HttpConnection,), {"settings": settings, "waiting": {}})


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that may be leaving while the server stops: uvicorn's own fails on it, and the server with it."""

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()


def _raw(response: JSONResponse) -> bytes:
    status = HTTPStatus(response.status_code)
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    lines += [name + b": " + value for name, value in (*response.raw_headers, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", bytes(response.body)])

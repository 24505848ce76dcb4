"""HTTP connections before there is a request: how long, how large and in how many parts a request may arrive."""

from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.server.connections import CONNECTION, ServerConnection
from megatalker.serving.server.places import Places
from megatalker.serving.server.problems import TooManyConnectionsError, respond
from megatalker.settings import ServerSettings

MAX_TARGET_BYTES = 8000
"""Bytes of a path with its query: as many as RFC 9110 asks every server for."""
MAX_HEADERS = 100
"""Most headers of a request: Apache's ``LimitRequestFields``; the library for WebSockets takes 128."""
MAX_HEADER_BYTES = 8190
"""Bytes of one header with its name: Apache's ``LimitRequestFieldSize``; the library for WebSockets takes 8,192 with
the end of the line."""
MAX_FRAMING_BYTES = 1 << 16
"""Bytes of a request besides its body: request line, headers, and what divides a body into chunks, for which an eighth
of the body comes on top."""
MAX_PIPELINED = 64
"""Requests that wait for the answer to one before them."""
PART_BYTES = 1 << 14
"""Bytes are parsed in parts of this size, so that no limit is exceeded by more."""


class HttpConnection(ServerConnection, HttpToolsProtocol):
    """A connection that has ``request_timeout_s`` for each whole request."""

    _request_timer: TimerHandle | None = None
    """Runs while a request is expected."""
    _fault: tuple[MegatalkerError, HTTPStatus] | None = None
    """Why the parser was stopped, where its own reason is not it."""
    _begun = False
    """A request has begun to arrive."""
    _headers_seen = 0
    _framing = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.make_room()
        if not transport.is_closing():
            self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self.read_later()
            return
        for begin in range(0, len(data), PART_BYTES):
            if self._lingering or self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            part = data[begin : begin + PART_BYTES]
            self._framing += len(part)
            super().data_received(part)
            if self._framing > MAX_FRAMING_BYTES:
                why = _too_large(f"the request line, headers and chunks exceed {MAX_FRAMING_BYTES} bytes")
                self._refuse(why, linger=True)
                return
        if self._begun and self.cycle is not None and self.cycle.response_complete and not self.transport.is_closing():
            self.read_later()  # the rest of a request that was refused

    # ---- what the parser finds

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._headers_seen, self._framing = True, 0, 0
        self.scope["state"][CONNECTION] = self
        if len(self.pipeline) >= MAX_PIPELINED:
            error = InvalidRequestError(
                f"{MAX_PIPELINED} requests wait on this connection, expected no more; read the answers first"
            )
            self._stop_parser(error, HTTPStatus.TOO_MANY_REQUESTS)
        self._start_request_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            error = InvalidRequestError(f"the address has more than {MAX_TARGET_BYTES} bytes; ask for a shorter one")
            self._stop_parser(error, HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_seen += 1
        if self._headers_seen > MAX_HEADERS:
            self._stop_parser(*_too_large(f"the request has more than {MAX_HEADERS} headers"))
        if len(name) + len(value) + len(": ") > MAX_HEADER_BYTES:
            self._stop_parser(*_too_large(f"a header of the request has more than {MAX_HEADER_BYTES} bytes"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.__class__ = _Answer if self.scope["http_version"] == "1.1" else _UntilClosed

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body) + len(body) // 8
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._begun = False
        self._stop_request_timer()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # it was answered before it had come whole
            self._start_request_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else another request came meanwhile
            self._start_request_timer()

    def handle_websocket_upgrade(self) -> None:
        """An answer that is under way would end up between the messages of the WebSocket."""
        if (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused:
            error = InvalidRequestError("a WebSocket cannot begin before all answers were read; use a new connection")
            self._refuse((error, HTTPStatus.BAD_REQUEST))
            return
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped."""
        unreadable = InvalidRequestError(f"{msg.rstrip('.').lower()}; expected HTTP/1.1"), HTTPStatus.BAD_REQUEST
        self._refuse(self._fault or unreadable, linger=True)

    def _stop_parser(self, error: MegatalkerError, status: HTTPStatus) -> None:
        self._fault = error, status
        raise error  # which the parser hands to send_400_response, by way of uvicorn

    # ---- the time that a request may take

    @property
    def waiting(self) -> bool:
        return self._request_timer is not None or self._lingering

    @property
    def idle(self) -> bool:
        return self.waiting

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(self.settings.request_timeout_s, self._time_out)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _time_out(self) -> None:
        error = InvalidRequestError(
            f"no whole request came within {self.settings.request_timeout_s:g} s; send it faster, "
            "or raise the server's setting request_timeout_s"
        )
        self._refuse((error, HTTPStatus.REQUEST_TIMEOUT))

    @property
    def closes_after_answer(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def give_way(self, error: TooManyConnectionsError) -> None:
        """Tell the client why, and close a little later: a thousand that connect again at once would take all time."""
        self._refuse((error, HTTPStatus.SERVICE_UNAVAILABLE), linger=True)

    def _refuse(self, why: tuple[MegatalkerError, HTTPStatus], *, linger: bool = False) -> None:
        """Close; with an answer, unless another one is under way."""
        if self._lingering:
            self.transport.abort()
            return
        self._stop_request_timer()
        cycle, unread = self.cycle, self.flow.write_paused
        answered = cycle is not None and cycle.response_started
        free = not unread and not self.pipeline and (not answered or (cycle.response_complete and self._begun))
        if cycle is not None:  # nothing more of it is sent
            cycle.disconnected = True
            cycle.message_event.set()
        self.flow.resume_writing()
        if free:
            self.transport.write(_raw(respond(*why)))
        if free and linger:
            self.linger()
        elif unread:
            self.transport.abort()
        else:
            self.transport.close()


class _Answer(RequestResponseCycle):
    """Ends with its connection, also where a later request waits behind it, of which alone the connection tells."""

    async def send(self, message: Any) -> None:
        self.disconnected = self.disconnected or self.transport.is_closing()
        await super().send(message)


class _UntilClosed(_Answer):
    """An answer to HTTP/1.0, which knows no chunks: where no length is given, the body ends with the connection."""

    without_length = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", [])}
            if b"content-length" not in names:
                self.without_length, self.chunked_encoding = True, False
        elif self.without_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def http_connection(settings: ServerSettings, places: Places) -> type[HttpConnection]:
    """The class of one server's HTTP connections, as uvicorn wants it."""
    return type("HttpConnection", (HttpConnection,), {"settings": settings, "places": places})


def _too_large(what: str) -> tuple[MegatalkerError, HTTPStatus]:
    return InvalidRequestError(f"{what}; send less"), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


def _raw(response: JSONResponse) -> bytes:
    status = HTTPStatus(response.status_code)
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    lines += [name + b": " + value for name, value in (*response.raw_headers, (b"connection", b"close"))]
    return b"\r\n".join([*lines, b"", bytes(response.body)])

"""WebSockets below their messages: handshakes that are refused, frames that say nothing, answers that are not read."""

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from megatalker.serving.server.callers import TokenBucket
from megatalker.serving.server.connections import CONNECTION, LINGER_S, PAUSE_S, ServerConnection
from megatalker.serving.server.places import Places
from megatalker.serving.server.problems import TooManyConnectionsError
from megatalker.settings import ServerSettings

PART_BYTES = 1 << 12
"""Bytes are parsed in parts of this size, between which other connections run: the smallest frame has 6 bytes, and
parsing one takes 4 to 5 microseconds (websockets 17, one core)."""
EMPTY_FRAMES, EMPTY_FRAMES_A_SECOND = 100, 20
"""Pings, pongs, and parts of a message that complete none and have fewer than ``PART_BYTES``."""
TRY_AGAIN_LATER, POLICY_VIOLATION = 1013, 1008


class SocketConnection(ServerConnection, WebSocketsSansIOProtocol):
    """A WebSocket that is read as fast as its messages are handled and its answers are read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unparsed = bytearray()
        self._parse_is_due = False
        self.close_timeout = LINGER_S
        self._empty_frames = TokenBucket(EMPTY_FRAMES_A_SECOND, EMPTY_FRAMES)

    # ---- from the client

    def data_received(self, data: bytes) -> None:
        """Parse what came, part by part."""
        if self._lingering:
            self.read_later()
            return
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        self._parse_is_due = False
        part = bytes(self._unparsed[:PART_BYTES])
        del self._unparsed[:PART_BYTES]
        if part and not self.transport.is_closing():
            super().data_received(part)
            if not self.handshake_initiated and self.conn.handshake_exc is not None:
                self._refuse_handshake()
        self._continue_reading()

    def _continue_reading(self) -> None:
        """Parse more, read more, or wait until messages are handled and answers read."""
        if self._lingering or self.transport.is_closing():
            self._unparsed.clear()
            return
        if self.close_sent:
            self._await_close()
        elif self.read_paused or not self.writable.is_set():
            self.transport.pause_reading()
        elif self._unparsed:
            self.transport.pause_reading()
            if not self._parse_is_due:
                self._parse_is_due = True
                self.loop.call_soon(self._parse)
        else:
            self.transport.resume_reading()

    def _await_close(self) -> None:
        """The conversation is over. The client may have sent much before it hears so: that is looked through for its
        answer, a part at a time.
        """
        if not self._unparsed:
            self.read_later()
        elif not self._parse_is_due:
            self._parse_is_due = True
            self.transport.pause_reading()
            self.loop.call_later(PAUSE_S, self._parse)

    async def receive(self) -> Any:
        """The next event for the application."""
        event = await super().receive()
        self._continue_reading()
        return event

    async def send(self, message: Any) -> None:
        """Send an event of the application."""
        await super().send(message)
        if self.close_sent:
            self._continue_reading()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["state"][CONNECTION] = self

    def _refuse_handshake(self) -> None:
        """The parser could not read the request, of which uvicorn hears nothing."""
        error = self.conn.handshake_exc
        reason = f"{error}; {error.__cause__}" if error is not None and error.__cause__ else str(error)
        answer = b"".join(self.conn.data_to_send())
        if not answer:  # the library has no answer to some errors
            body = f"Failed to open a WebSocket connection: {reason}.\n".encode()
            answer = (
                b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    # ---- frames

    def handle_ping(self) -> None:
        if self._may_have_empty_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._may_have_empty_frame():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        if self._may_have(event):
            super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        if self._may_have(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if self._may_have(event):
            super().handle_bytes(event)

    def _may_have(self, event: Frame) -> bool:
        return event.fin or len(event.data) >= PART_BYTES or self._may_have_empty_frame()

    def _may_have_empty_frame(self) -> bool:
        if self.close_sent:
            return False
        if self._empty_frames.take():
            self.hang_up(
                POLICY_VIOLATION, f"more than {EMPTY_FRAMES_A_SECOND} pings, pongs and small fragments a second"
            )
            return False
        return True

    # ---- to the client

    def pause_writing(self) -> None:
        super().pause_writing()
        self._continue_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._continue_reading()

    @property
    def waiting(self) -> bool:
        return self._lingering

    @property
    def idle(self) -> bool:
        return self.call is None or not self.call.streams

    def give_way(self, error: TooManyConnectionsError) -> None:
        """Tell the client why, and close."""
        self.hang_up(TRY_AGAIN_LATER, str(error))

    def hang_up(self, code: int, reason: str) -> None:
        """End the conversation: the client is told why if it reads, and has a moment to do so."""
        if self._lingering or not self.writable.is_set() or self.conn.state is not State.OPEN:
            self.transport.abort()
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.fail(code, reason.encode()[:123].decode(errors="ignore"))
        self.close_sent = self.disconnected = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_timer = self.linger()

    def shutdown(self) -> None:
        """The server stops. A connection that is leaving already is left alone."""
        if not self._lingering and not self.transport.is_closing():
            super().shutdown()


def socket_connection(settings: ServerSettings, places: Places) -> type[SocketConnection]:
    """The class of one server's WebSockets, as uvicorn wants it."""
    return type("SocketConnection", (SocketConnection,), {"settings": settings, "places": places})

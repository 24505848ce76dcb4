"""Bytes that no well-behaved client sends."""

import json
import socket
from contextlib import suppress

from serving import Served, Talk
from waiting import HANG_S

PING, PONG, TEXT_FRAME, PART = 0x9, 0xA, 0x1, 0x0


def plug(served: Served, sent: str | bytes = "", *, source: str = "127.0.0.1", receives: int = 0) -> socket.socket:
    """A connection on which this was sent, from this address; ``receives`` bounds what the kernel keeps for it."""
    connection = served.sockets.enter_context(socket.socket())
    connection.settimeout(HANG_S)
    if receives:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
    connection.sendall(sent.encode() if isinstance(sent, str) else sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def answer(connection: socket.socket) -> tuple[int, str]:
    """Status and error message, once the server has hung up."""
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def frame(kind: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    """A WebSocket frame of at most 125 bytes, masked with zeros."""
    assert len(payload) <= 125
    return bytes([kind | 0x80 * last, 0x80 | len(payload)]) + bytes(4) + payload


def flood(talk: Talk, frames: bytes) -> None:
    """Send what the client's library would not; the server may hang up meanwhile."""
    with suppress(BrokenPipeError, ConnectionResetError):
        talk.socket.socket.sendall(frames)

"""A server seen by an attacker: connections on which anything can be sent, from an address of the attacker's own."""

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SOURCE = "127.0.0.2"
"""An address of the loopback interface that no victim has."""
TEXT, BINARY, PART, PING = 0x1, 0x2, 0x0, 0x9
_UPGRADE = (
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "sec-websocket-version: 13\r\n"
)

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Target:
    """Server that an attack is aimed at, and the API key that the attacker uses."""

    url: str
    key: str | None
    """``None``: the server asks for none."""

    def head(self, line: str, *headers: str) -> bytes:
        """Return the request line and headers, with the key, without the empty line at the end."""
        known = [f"host: {urlsplit(self.url).netloc}"]
        known += [] if self.key is None else [f"authorization: Bearer {self.key}"]
        return "".join(f"{part}\r\n" for part in (line, *known, *headers)).encode()

    def request(self, path: str, body: dict[str, Any], *headers: str) -> bytes:
        """Return a whole request with a JSON body."""
        data = json.dumps(body).encode()
        length = f"content-length: {len(data)}"
        return self.head(f"POST {path} HTTP/1.1", "content-type: application/json", length, *headers) + b"\r\n" + data

    async def connect(self, sent: bytes = b"", *, receives: int = 0) -> Stream:
        """Connect and send these bytes; ``receives`` bounds what the kernel keeps of the answer."""
        plain = socket.socket()
        if receives:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        plain.setblocking(False)
        plain.bind((SOURCE, 0))
        address = urlsplit(self.url)
        await asyncio.get_running_loop().sock_connect(plain, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=receives or 1 << 16)
        writer.write(sent)
        return reader, writer

    async def websocket(self, *, receives: int = 0) -> Stream:
        """Open a WebSocket."""
        handshake = self.head("GET /v1/speak HTTP/1.1") + _UPGRADE.encode() + b"\r\n"
        reader, writer = await self.connect(handshake, receives=receives)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            writer.transport.abort()
            raise ConnectionRefusedError(head.decode(errors="replace"))
        return reader, writer


def frame(kind: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    """Return a WebSocket frame, masked with zeros."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([0x80 | 127]) + size.to_bytes(8, "big")
    return bytes([kind | 0x80 * last]) + length + bytes(4) + payload


def message(**fields: Any) -> bytes:
    """Return a text frame with these fields as JSON."""
    return frame(TEXT, json.dumps(fields).encode())

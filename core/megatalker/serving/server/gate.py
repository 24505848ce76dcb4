"""What every request passes before a route sees it: its account in the log, the allow-lists, the key."""

import re
import time
from collections.abc import Callable
from fnmatch import fnmatchcase

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from megatalker.errors import MegatalkerError
from megatalker.serving.server import logs
from megatalker.serving.server.callers import Call, current_call, enter_call, leave_call
from megatalker.serving.server.connections import CONNECTION
from megatalker.serving.server.forwarded import route_path
from megatalker.serving.server.keyring import SUBPROTOCOL, Keyring
from megatalker.serving.server.meters import Route
from megatalker.serving.server.problems import HostError, OriginError, respond
from megatalker.settings import ServerSettings

PROBES = frozenset({"/health", "/live", "/ready", "/metrics"})
"""What orchestrators ask all the time: neither yes nor "not yet" is worth a line."""
OPEN_PATHS = PROBES | {"/", "/openapi.json", "/docs"}
OPEN_FOLDERS = ("/docs/assets/", "/static/")
"""With ``OPEN_PATHS``, what is answered without a key. Every other path asks for it, also one that does not exist."""
REQUEST_ID = "x-request-id"

_GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class Account:
    """Outermost: names each request (``X-Request-Id``, taken or made, returned), and writes it down."""

    def __init__(self, app: ASGIApp, max_streams: int) -> None:
        self._app, self._max_streams = app, max_streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        websocket = scope["type"] == "websocket"
        client = "" if connection.client is None else connection.client.host
        call = Call(client=client, max_streams=self._max_streams if websocket else None)
        asked = connection.headers.get(REQUEST_ID, "")
        if _GOOD_ID.fullmatch(asked):
            call.id = asked
        scope.setdefault("state", {})["call"] = call
        began, status = time.monotonic(), 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] in _ANSWERS:
                status = message.get("status", 101)
                MutableHeaders(scope=message)[REQUEST_ID] = call.id
            await send(message)

        entered = enter_call(call)
        try:
            await self._app(scope, receive, send_named)
        except BaseException:
            status = status or 500
            raise
        finally:
            logs.write(
                "connection" if websocket else "request",
                quiet=route_path(scope) in PROBES and status in (200, 503),
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"],
                status=status,
                duration_s=round(time.monotonic() - began, 6),
                key=call.caller.name,
                client=client or None,
            )
            leave_call(entered)


_ANSWERS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class Gate:
    """Refuses hosts, web pages and callers that may not ask, before anything of a body is read.

    Args:
        app: what is behind it.
        settings: the server's.
        refused: told of each refusal, with the kind of connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keyring: Keyring,
        refused: Callable[[Exception, Route], None],
    ) -> None:
        self._app, self._keyring, self._refused = app, keyring, refused
        self._hosts = [pattern.lower().strip("[]") for pattern in settings.allowed_hosts]
        self._origins = settings.allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection, path = HTTPConnection(scope), route_path(scope)
        try:
            self._check_host(connection)
            self._check_origin(connection)
            if path not in OPEN_PATHS and not path.startswith(OPEN_FOLDERS):
                current_call().caller = self._keyring.caller(connection)
                if (made := scope["state"].get(CONNECTION)) is not None:  # else another server holds it, such as Ray's
                    made.claim_place()
        except MegatalkerError as error:
            self._refused(error, "http" if scope["type"] == "http" else "websocket")
            page = "origin" in connection.headers and not isinstance(error, HostError)
            if scope["type"] == "websocket" and page:
                await _close(error, WebSocket(scope, receive, _agreeing(connection, send)))
            else:
                await respond(error)(scope, receive, send)
            return
        await self._app(scope, receive, _agreeing(connection, send))

    def _check_host(self, connection: HTTPConnection) -> None:
        """Compare every ``Host`` header; a client of HTTP/1.0 may send none, browsers always do."""
        for host in connection.headers.getlist("host") if self._hosts else ():
            if not any(fnmatchcase(_without_port(host).lower(), pattern) for pattern in self._hosts):
                raise HostError(
                    f"this server does not answer for host {host!r}; its setting server.allowed_hosts says for which "
                    "(without it and without a key, a server on a loopback address answers for localhost alone)"
                )

    def _check_origin(self, connection: HTTPConnection) -> None:
        """Browsers say which page asks. Without a look at it any page could speak through a server on its visitor's
        machine; other programs send no origin.
        """
        origin = connection.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        scheme, _, page = origin.partition("://")
        port = _DEFAULT_PORTS.get(scheme, "")
        if page.removesuffix(port) != connection.headers.get("host", "").removesuffix(port):
            raise OriginError(f"pages of {origin!r:.60} may not ask; the setting allowed_origins allows them")


_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


async def _close(error: MegatalkerError, socket: WebSocket) -> None:
    """Refuse a WebSocket of a web page, which cannot read an HTTP answer: it hears why when it is closed."""
    await socket.accept()
    await socket.close(_REFUSED, str(error).encode()[:_LONGEST_REASON].decode(errors="ignore"))


_REFUSED = 1008
"""The protocol's code for what a server's policy forbids."""


_LONGEST_REASON = 123
"""Bytes, by the protocol."""


def _agreeing(connection: HTTPConnection, send: Send) -> Send:
    """A browser that offers subprotocols wants one of them accepted."""
    offered = [name.strip() for name in connection.headers.get("sec-websocket-protocol", "").split(",")]
    if connection.scope["type"] != "websocket" or SUBPROTOCOL not in offered:
        return send

    async def agree(message: Message) -> None:
        if message["type"] == "websocket.accept" and message.get("subprotocol") is None:
            message["subprotocol"] = SUBPROTOCOL
        await send(message)

    return agree


def _without_port(host: str) -> str:
    """The name alone, an IPv6 address without its brackets."""
    return re.sub(r":\d*$", "", host).strip("[]") if host.count(":") < 2 or "]" in host else host

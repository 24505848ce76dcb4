"""Middleware that every request passes before a route sees it: proxies, the request log, access, body limits, HEAD."""

import re
import time
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, cast

from fastapi import FastAPI, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from megatalker.errors import MegatalkerError
from megatalker.serving.server.callers import (
    RequestContext,
    StreamLimitError,
    Turns,
    current_request,
    enter_request,
    leave_request,
)
from megatalker.serving.server.connections import CONNECTION
from megatalker.serving.server.keyring import SUBPROTOCOL, Keyring
from megatalker.serving.server.problems import HostError, OriginError, TooLongError, respond
from megatalker.serving.server.telemetry import Route, log_event
from megatalker.serving.server.voice_routes import PATHS as UPLOADS
from megatalker.settings import ServerSettings

_GOOD_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){1,8}/?")
_GOOD_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


def route_path(scope: Scope) -> str:
    """Return the path of a request without the prefix under which the application is reached."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(prefix) :] if prefix and f"{path}/".startswith(f"{prefix}/") else path


class Forwarded:
    """Tells what is behind it which address the client asked, before anything looks at it.

    ``X-Forwarded-Host``, ``-Prefix``, ``-For`` and ``-Proto`` are believed from trusted proxies only. A proxy may cut
    the prefix off, or leave it in the path.

    Args:
        app: what is behind it.
        settings: the server's.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._prefix, proxies = settings.root_path, settings.trusted_proxies
        self._everybody = "*" in proxies
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(proxy) for proxy in proxies if proxy != "*"]
        outer: Any = ProxyHeadersMiddleware(cast("Any", app), list(proxies))  # its types are stricter than Starlette's
        self._app: ASGIApp = outer if proxies else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        prefix = self._prefix
        if self._trusts(scope):
            headers = Headers(scope=scope)
            host = headers.get("x-forwarded-host", "").partition(",")[0].strip()
            if _GOOD_HOST.fullmatch(host):
                MutableHeaders(scope=scope)["host"] = host
            told = headers.get("x-forwarded-prefix", "").partition(",")[0].strip()
            prefix = told.rstrip("/") if _GOOD_PREFIX.fullmatch(told) else prefix
        if prefix:
            _move(scope, prefix)
        if scope["type"] == "http" and scope["path"] and not route_path(scope):  # what is relative needs the slash
            await RedirectResponse(f"{scope['path'].rpartition('/')[2]}/")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _trusts(self, scope: Scope) -> bool:
        if self._everybody:
            return True
        if not self._networks or not scope.get("client"):
            return False
        try:
            peer = ip_address(scope["client"][0])
        except ValueError:  # a Unix socket, or a name
            return False
        return any(peer in network for network in self._networks)


def _move(scope: Scope, prefix: str) -> None:
    """Place a request under a prefix. Changes the scope itself: what answers errors holds the same one."""
    rest = route_path(scope)
    if f"{rest}/".startswith(f"{prefix}/"):
        rest = rest[len(prefix) :]
    scope["root_path"] = prefix + str(scope.get("root_path", ""))
    scope["path"] = scope["root_path"] + rest


PROBES = frozenset({"/health", "/live", "/ready", "/metrics"})
"""Paths that orchestrators ask all the time; neither yes nor "not yet" is worth a line in the log."""
OPEN_PATHS = PROBES | {"/", "/openapi.json", "/docs"}
OPEN_FOLDERS = ("/docs/assets/", "/static/")
"""Folders answered without a key, as are ``OPEN_PATHS``. Every other path needs it, also one that does not exist."""
REQUEST_ID = "x-request-id"

_GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestLog:
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
        call = RequestContext(client=client, max_streams=self._max_streams if websocket else None)
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

        entered = enter_request(call)
        try:
            await self._app(scope, receive, send_named)
        except BaseException:
            status = status or 500
            raise
        finally:
            log_event(
                "connection" if websocket else "request",
                quiet=route_path(scope) in PROBES and status in (200, 503),
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"],
                status=status,
                duration_s=round(time.monotonic() - began, 6),
                key=call.caller.name,
                client=client or None,
            )
            leave_request(entered)


_ANSWERS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class AccessControl:
    """Refuses hosts, web pages and callers that may not ask, before anything of a body is read.

    Args:
        app: what is behind it.
        settings: the server's.
        keyring: of the callers.
        turns: of the event loop, which each caller waits for.
        refused: told of each refusal, with the kind of connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keyring: Keyring,
        turns: Turns,
        refused: Callable[[Exception, Route], None],
    ) -> None:
        self._app, self._keyring, self._turns, self._refused = app, keyring, turns, refused
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
                current_request().caller = self._keyring.caller(connection)
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
        await self._turns.take(current_request().owner)
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


MAX_UPLOADS = 4
"""Uploads of one owner at a time: each holds up to ``max_upload_bytes``, and an encoder while its voice is cloned."""


class BodyLimit:
    """Refuses a body that is announced as too long before any of it is read, and any other when it becomes too long;
    and an upload of an owner that has :data:`MAX_UPLOADS` under way.

    Args:
        app: what is behind it.
        settings: the server's.
        refused: told of each refusal that the application does not see.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, refused: Callable[[Exception, Route], None]) -> None:
        self._refused = refused
        self._limits = {"max_message_bytes": settings.max_message_bytes, "max_upload_bytes": settings.max_upload_bytes}
        self._uploads: Counter[str] = Counter()
        self._apps = {name: RequestBodyLimitMiddleware(app, limit) for name, limit in self._limits.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = scope["type"] == "http" and scope["method"] == "POST" and route_path(scope) in UPLOADS
        name = "max_upload_bytes" if upload else "max_message_bytes"
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if declared.isdecimal() and int(declared) > self._limits[name]:
            await self._refuse(TooLongError(), scope, receive, send)
        elif upload:
            await self._upload(scope, receive, send)
        else:
            await self._apps[name](scope, receive, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = current_request().owner
        if self._uploads[owner] >= MAX_UPLOADS:
            error = StreamLimitError(f"{MAX_UPLOADS} uploads of this caller are under way; wait until one has ended")
            await self._refuse(error, scope, receive, send)
            return
        self._uploads[owner] += 1
        try:
            await self._apps["max_upload_bytes"](scope, receive, send)
        finally:
            self._uploads[owner] -= 1
            self._uploads += Counter()  # which drops the owners that have none

    async def _refuse(self, error: MegatalkerError, scope: Scope, receive: Receive, send: Send) -> None:
        self._refused(error, "http")
        await respond(error)(scope, receive, send)


class HeadRequests:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


def allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods that the path of a request takes, ``OPTIONS`` aside."""
    methods = [method for method in _ASKED if _is_taken(app, {**scope, "method": method})]
    return sorted([*methods, *(["HEAD"] if "GET" in methods else [])])


_ASKED = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _is_taken(app: FastAPI, scope: Scope) -> bool:
    for route in app.routes:
        files = isinstance(route, Mount) and scope["method"] != "GET"  # which match whatever the method
        if not files and route.matches(scope)[0] is Match.FULL:
            return True
    return False


def options(methods: list[str]) -> Response:
    """Return the answer to ``OPTIONS`` for a path with these methods."""
    return Response(status_code=204, headers={"Allow": ", ".join(sorted([*methods, "OPTIONS"]))})

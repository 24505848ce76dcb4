"""The address that clients see, where a reverse proxy stands before the server: its host, and a prefix of its paths."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

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

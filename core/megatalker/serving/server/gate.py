"""The key, asked for before anything of a request is read."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from megatalker.serving.server.problems import AuthenticationError, respond

OPEN_PATHS = frozenset({"/health", "/metrics", "/openapi.json", "/docs", "/docs/oauth2-redirect"})
"""What probes, Prometheus and readers of the documentation see without a key; every other path asks for one."""
OPEN_FOLDER = "/docs/assets/"


class Gate:
    """Lets through what carries a key, over HTTP and WebSocket alike.

    Args:
        app: what is behind the gate.
        check: raises ``AuthenticationError`` where headers carry no key that is accepted.
    """

    def __init__(self, app: ASGIApp, check: Callable[[Headers], None]) -> None:
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_FOLDER):
            await self._app(scope, receive, send)
            return
        try:
            self._check(Headers(scope=scope))
        except AuthenticationError as error:
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(respond(error))
            else:
                await respond(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

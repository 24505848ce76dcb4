"""While the engine loads, the page is served and calls are not."""

from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

ALWAYS = ("/agent", "/client")


class Gate:
    """ASGI middleware: answers 503 to everything but the page until ``is_open`` says so; refuses WebSockets.

    Args:
        app: what is behind it.
        is_open: asked for each request.
    """

    def __init__(self, app: ASGIApp, is_open: Callable[[], bool]) -> None:
        self._app, self._is_open = app, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open() or _is_page(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})  # try again later
        else:
            reply = PlainTextResponse("the engine is being loaded", 503, {"Retry-After": "5"})
            await reply(scope, receive, send)


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    return (scope["type"] == "http" and (scope["method"], path) == ("GET", "/")) or path.startswith(ALWAYS)

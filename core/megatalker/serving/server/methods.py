"""Methods that every route has besides its own: HEAD where there is GET, and OPTIONS."""

from fastapi import FastAPI, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
    methods: set[str] = set()
    for route in app.routes:
        if route.matches(scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def options(methods: list[str]) -> Response:
    """Return the answer to ``OPTIONS`` for a path with these methods."""
    return Response(status_code=204, headers={"Allow": ", ".join(sorted([*methods, "OPTIONS"]))})

"""Methods that every route has besides its own: HEAD where there is GET, and OPTIONS."""

from fastapi import FastAPI, Response
from starlette.routing import Match, Mount
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

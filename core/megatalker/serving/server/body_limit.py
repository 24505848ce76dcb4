"""How long the body of a request may be, by its path."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from megatalker.serving.server.forwarded import route_path
from megatalker.serving.server.meters import Route
from megatalker.serving.server.problems import TooLongError, respond
from megatalker.serving.server.voice_routes import PATHS as UPLOADS
from megatalker.settings import ServerSettings


class BodyLimit:
    """Refuses a body that is announced as too long before any of it is read, and any other when it becomes too long.

    Args:
        app: what is behind it.
        settings: the server's.
        refused: told of each refusal that the application does not see.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, refused: Callable[[Exception, Route], None]) -> None:
        self._refused = refused
        self._limits = {"max_message_bytes": settings.max_message_bytes, "max_upload_bytes": settings.max_upload_bytes}
        self._apps = {name: RequestBodyLimitMiddleware(app, limit) for name, limit in self._limits.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = "max_upload_bytes" if scope["type"] == "http" and route_path(scope) in UPLOADS else "max_message_bytes"
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if declared.isdecimal() and int(declared) > self._limits[name]:
            error = TooLongError()
            self._refused(error, "http")
            await respond(error)(scope, receive, send)
        else:
            await self._apps[name](scope, receive, send)

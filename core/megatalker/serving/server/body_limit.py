"""How long the body of a request may be, by its path, and how many uploads one owner may have under way."""

from collections import Counter
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from megatalker.errors import MegatalkerError
from megatalker.serving.server.callers import StreamLimitError, current_call
from megatalker.serving.server.forwarded import route_path
from megatalker.serving.server.meters import Route
from megatalker.serving.server.problems import TooLongError, respond
from megatalker.serving.server.voice_routes import PATHS as UPLOADS
from megatalker.settings import ServerSettings

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
        owner = current_call().owner
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

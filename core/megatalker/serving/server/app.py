"""Assembles the routes over one engine."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from megatalker.engine import Engine
from megatalker.errors import InvalidRequestError, MegatalkerError, explain_validation
from megatalker.serving.protocol.voice_files import read_voices
from megatalker.serving.server.aliases import Aliases
from megatalker.serving.server.conversation import Conversation
from megatalker.serving.server.gate import Gate
from megatalker.serving.server.information import health_routes, voice_routes
from megatalker.serving.server.models import model_routes
from megatalker.serving.server.openai_speech import speech_routes
from megatalker.serving.server.openapi import describe
from megatalker.serving.server.plain_session import PlainSession
from megatalker.serving.server.problems import AuthenticationError, respond
from megatalker.serving.server.speaker import Speaker
from megatalker.serving.server.tts_stream import tts_stream_routes
from megatalker.settings import ServerSettings


def create_app(engine: Engine, settings: ServerSettings | None = None) -> FastAPI:
    """An ASGI application that speaks with this engine, warms it up when it starts, and closes it when it stops.

    Its :class:`~megatalker.serving.server.speaker.Speaker` is ``app.state.speaker``.

    Raises:
        SettingsError, InvalidRequestError: the voices folder is missing, or holds something else.
    """
    settings = settings or ServerSettings()
    speaker = Speaker(engine, read_voices(settings.voices))
    aliases = Aliases(speaker, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(speaker.warm_up())
        yield
        await asyncio.to_thread(engine.close)
        await warming

    app = FastAPIOffline(title="megatalker", lifespan=lifespan, redoc_url=None, static_url="/docs/assets")
    app.state.speaker = speaker
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=settings.max_message_bytes)
    app.add_middleware(_DeclaredLength, limit=settings.max_message_bytes)
    app.add_middleware(Gate, check=partial(_check_key, settings))
    app.include_router(health_routes(speaker))
    keyed = [Depends(HTTPBearer(auto_error=False, description="Where the server has a key."))]  # the gate checks it
    app.include_router(model_routes(speaker, aliases), dependencies=keyed)
    app.include_router(voice_routes(speaker), dependencies=keyed)
    app.include_router(speech_routes(speaker, settings, aliases), dependencies=keyed)
    app.include_router(tts_stream_routes(speaker, settings), dependencies=keyed)

    @app.websocket("/v1/speak")
    async def speak(socket: WebSocket) -> None:
        await socket.accept()
        with speaker.meters.connections.track_inprogress():
            await Conversation(socket, speaker, settings).run()

    @app.websocket("/api/v1/speak")
    async def speak_plainly(socket: WebSocket) -> None:
        await socket.accept()
        with speaker.meters.connections.track_inprogress():
            await PlainSession(socket, speaker, settings).run()

    _answer_errors(app)
    describe(app)
    return app


def _check_key(settings: ServerSettings, headers: Headers) -> None:
    if settings.api_key is None:
        return
    expected = f"Bearer {settings.api_key.get_secret_value()}"
    if not secrets.compare_digest(headers.get("authorization", "").encode(), expected.encode()):
        raise AuthenticationError("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")


class _DeclaredLength:
    """Refuses a body that is announced as too long before any of it is read, in the same words as every error."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if declared.isdecimal() and int(declared) > self._limit:
            await _too_long()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _too_long() -> Response:
    return respond(
        InvalidRequestError("the body is too long; send less, or raise the server's setting max_message_bytes"), 413
    )


def _answer_errors(app: FastAPI) -> None:
    """Every error has the same JSON body."""

    @app.exception_handler(MegatalkerError)
    async def known(_request: Request, error: MegatalkerError) -> Response:
        return respond(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> Response:
        faults = error.errors()
        param = ".".join(map(str, faults[0]["loc"][1:])) or None
        return respond(InvalidRequestError(explain_validation(faults, skip=1)), param=param)  # 1: "body"

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413:
            return _too_long()
        about = InvalidRequestError(f"{request.method} {request.url.path}: {error.detail}")
        response = respond(about, error.status_code)
        response.headers.update(error.headers or {})  # such as the methods that are allowed
        return response

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> Response:
        return respond(error)

"""Assembles the routes over one engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from megatalker.errors import InvalidRequestError, MegatalkerError, explain_validation
from megatalker.serving.protocol.voice_files import read_voices
from megatalker.serving.server.conversation import Conversation
from megatalker.serving.server.gate import REQUEST_ID, Account, Gate
from megatalker.serving.server.information import catalogue_routes, health_routes
from megatalker.serving.server.keyring import Keyring
from megatalker.serving.server.late_engine import ServedEngine
from megatalker.serving.server.meters import Meters, Route
from megatalker.serving.server.openai_speech import speech_routes
from megatalker.serving.server.problems import NoRouteError, TooLongError, respond
from megatalker.serving.server.speaker import Speaker
from megatalker.serving.server.tokens import token_routes
from megatalker.settings import ServerSettings


def create_app(engine: ServedEngine, settings: ServerSettings | None = None) -> FastAPI:
    """An ASGI application that speaks with this engine, warms it up when it starts (``lazy``: at the first request),
    and closes it when it stops.

    Its :class:`~megatalker.serving.server.speaker.Speaker` is ``app.state.speaker``.

    Raises:
        SettingsError, InvalidRequestError: the voices folder is missing, or holds something else.
    """
    settings = settings or ServerSettings()
    speaker = Speaker(engine, read_voices(settings.voices), lazy=settings.lazy)
    model = settings.model or engine.checkpoint.name

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if not settings.lazy:
            speaker.begin_warm_up()
        yield
        await asyncio.to_thread(engine.close)
        await speaker.warm_up_over()

    keyring = Keyring(settings)
    app = FastAPI(title="megatalker", lifespan=lifespan)
    app.state.speaker = speaker
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=settings.max_message_bytes)
    app.add_middleware(_DeclaredLength, limit=settings.max_message_bytes, refused=speaker.meters.refused)
    app.add_middleware(Gate, settings=settings, keyring=keyring, refused=speaker.meters.refused)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    app.add_middleware(Account, max_streams=settings.max_streams_per_connection)
    app.include_router(health_routes(speaker))
    keyed = [Depends(HTTPBearer(auto_error=False, description="Where the server has a key."))]  # the gate checks it
    app.include_router(catalogue_routes(speaker, model), dependencies=keyed)
    app.include_router(speech_routes(speaker, settings, model), dependencies=keyed)
    app.include_router(token_routes(keyring), dependencies=keyed)

    @app.websocket("/v1/speak")
    async def speak(socket: WebSocket) -> None:
        await socket.accept()
        with speaker.meters.connections.track_inprogress():
            await Conversation(socket, speaker, settings).run()

    _answer_errors(app, speaker.meters)
    return app


class _DeclaredLength:
    """Refuses a body that is announced as too long before any of it is read, in the same words as every error."""

    def __init__(self, app: ASGIApp, limit: int, refused: Callable[[Exception, Route], None]) -> None:
        self._app, self._limit, self._refused = app, limit, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if declared.isdecimal() and int(declared) > self._limit:
            error = TooLongError()
            self._refused(error, "http")
            await respond(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _answer_errors(app: FastAPI, meters: Meters) -> None:
    """Every error has the same JSON body, and is counted."""

    def answer(error: Exception, status: int | None = None) -> Response:
        meters.refused(error, "http")
        return respond(error, status)

    @app.exception_handler(MegatalkerError)
    async def known(_request: Request, error: MegatalkerError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> Response:
        return answer(InvalidRequestError(explain_validation(error.errors(), skip=1)))  # 1: "body"

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413:
            return answer(TooLongError())
        about = f"{request.method} {request.url.path}: {error.detail}"
        kind = NoRouteError if error.status_code in (404, 405) else InvalidRequestError
        return answer(kind(about), error.status_code)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        response = answer(error)
        response.headers[REQUEST_ID] = request.state.call.id  # answered outside of Account
        return response

"""Assembles the routes over one engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from megatalker.errors import InvalidRequestError, MegatalkerError, explain_validation
from megatalker.serving.background import count_lost_exceptions, giving_way
from megatalker.serving.server.batch_routes import batch_routes
from megatalker.serving.server.information import (
    DOCS_ASSETS,
    Aliases,
    health_routes,
    model_routes,
    serve_docs,
    serve_page,
)
from megatalker.serving.server.keyring import Keyring, follow_keys, token_routes
from megatalker.serving.server.lazy_engine import ServedEngine
from megatalker.serving.server.middleware import (
    PROBES,
    REQUEST_ID,
    AccessControl,
    BodyLimit,
    Forwarded,
    HeadRequests,
    RequestLog,
    allowed_methods,
    options,
    route_path,
)
from megatalker.serving.server.plain_session import PlainSession
from megatalker.serving.server.problems import NoRouteError, TooLongError, describe, respond, storage_trouble
from megatalker.serving.server.realtime_events import SUBPROTOCOL as REALTIME
from megatalker.serving.server.realtime_session import RealtimeSession
from megatalker.serving.server.socket_session import SocketSession
from megatalker.serving.server.speech_routes import speech_routes, tts_stream_routes
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import Metrics
from megatalker.serving.server.usage import KeyUsage
from megatalker.serving.server.voice_routes import voice_routes, watch_voices
from megatalker.settings import ServerSettings
from megatalker.voices import Voice
from megatalker.voices.cache import VoiceCache
from megatalker.voices.library import VoiceLibrary

logger = logging.getLogger(__name__)


def create_app(
    engine: ServedEngine,
    settings: ServerSettings | None = None,
    settings_file: Path | None = None,
    usage: KeyUsage | None = None,
) -> FastAPI:
    """An ASGI application that speaks with this engine, warms it up when it starts (``lazy``: at the first request),
    and closes it when it stops. Meanwhile it follows the keys in ``settings_file``, where there is one. ``usage`` is
    shared by the processes of a server.

    Its :class:`~megatalker.serving.server.speech_service.SpeechService` is ``app.state.service``.

    Raises:
        InvalidRequestError: the voices folder is missing, or something is wrong with a voice in it.
        SettingsError: two keys cannot be told apart.
    """
    settings = settings or ServerSettings()
    cache = VoiceCache[Voice](settings.voice_cache_size, settings.voice_cache_ttl_s)
    library = VoiceLibrary(settings.voices_dir, engine.checkpoint, cache, engine.settings.max_reference_s)
    service = SpeechService(engine, library, cache, settings)
    aliases = Aliases(service, settings)
    keyring = Keyring(settings, usage)
    health = service.metrics.background

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        count_lost_exceptions(asyncio.get_running_loop(), health)
        if not settings.lazy:
            service.begin_warm_up()
        async with giving_way(), watch_voices(library, health), follow_keys(keyring, settings_file, health):
            yield
        library.close()
        await asyncio.to_thread(engine.close)
        await service.warm_up_over()
        service.close()

    app = FastAPIOffline(
        title="megatalker",
        version=version("megatalker"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        static_url=f"/{DOCS_ASSETS}",
        telemetry={"operation_spans": False, "exclude": lambda scope: route_path(scope) in PROBES},
    )
    app.state.service = service
    app.add_middleware(HeadRequests)
    app.add_middleware(BodyLimit, settings=settings, refused=service.metrics.refused)
    app.add_middleware(
        AccessControl, settings=settings, keyring=keyring, turns=service.turns, refused=service.metrics.refused
    )
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    app.add_middleware(RequestLog, max_streams=settings.max_streams_per_connection)
    app.add_middleware(Forwarded, settings=settings)
    app.include_router(health_routes(service))
    keyed = [Depends(HTTPBearer(auto_error=False, description="Where the server has a key."))]  # the gate checks it
    app.include_router(model_routes(service, aliases), dependencies=keyed)
    app.include_router(voice_routes(service), dependencies=keyed)
    app.include_router(speech_routes(service, settings, aliases), dependencies=keyed)
    app.include_router(batch_routes(service, settings, aliases), dependencies=keyed)
    app.include_router(token_routes(keyring), dependencies=keyed)
    app.include_router(tts_stream_routes(service, settings), dependencies=keyed)

    @app.websocket("/v1/speak")
    async def speak(socket: WebSocket) -> None:
        await serve_socket(socket, SocketSession)

    @app.websocket("/api/v1/speak")
    async def speak_plainly(socket: WebSocket) -> None:
        await serve_socket(socket, PlainSession)

    @app.websocket("/v1/realtime")
    async def converse(socket: WebSocket) -> None:
        await serve_socket(socket, partial(RealtimeSession, aliases=aliases), REALTIME)

    async def serve_socket(
        socket: WebSocket, protocol: Callable[..., SocketSession], subprotocol: str | None = None
    ) -> None:
        await socket.accept(subprotocol if subprotocol in socket.scope["subprotocols"] else None)
        with service.metrics.connections.track_inprogress():
            await protocol(socket, service, settings).run()

    serve_page(app)
    serve_docs(app)
    _answer_errors(app, service.metrics)
    describe(app)
    return app


def _answer_errors(app: FastAPI, metrics: Metrics) -> None:
    """Every error has the same JSON body, and is counted."""

    def answer(error: Exception, status: int | None = None, param: str | None = None) -> Response:
        metrics.refused(error, "http")
        return respond(error, status, param)

    @app.exception_handler(MegatalkerError)
    async def known(_request: Request, error: MegatalkerError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> Response:
        faults = error.errors()
        param = ".".join(map(str, faults[0]["loc"][1:])) or None
        return answer(InvalidRequestError(explain_validation(faults, skip=1)), param=param)  # 1: "body"

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413:
            return answer(TooLongError())
        allowed = allowed_methods(app, request.scope) if error.status_code == 405 else []
        if allowed and request.method == "OPTIONS":
            return options(allowed)
        if isinstance(error.__cause__, OSError):  # a form that is too large for memory goes to the disk
            return await no_disk(request, error.__cause__)
        about = f"{request.method} {request.url.path}: {error.detail}"
        kind = NoRouteError if error.status_code in (404, 405) else InvalidRequestError
        response = answer(kind(about), error.status_code)
        response.headers.update(error.headers or {})
        if allowed:
            response.headers["Allow"] = ", ".join(allowed)
        return response

    @app.exception_handler(OSError)
    async def no_disk(_request: Request, error: OSError) -> Response:
        trouble = storage_trouble(error)
        if trouble is None:
            raise error
        logger.error("a request cannot be stored: %s", error)
        return answer(trouble)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        response = answer(error)
        response.headers[REQUEST_ID] = request.state.call.id  # answered outside of RequestLog
        return response

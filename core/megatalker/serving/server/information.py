"""Routes that describe the server: its model and the names for it, health, metrics, the page at ``/`` and ``/docs``.

The pages need no build step and no other server. Every address in them is relative, so that a reverse proxy may offer
them under any prefix.
"""

import time
from functools import partial
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import FileResponse, HTMLResponse

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.serving.protocol.voice_aliases import openai_voices
from megatalker.serving.server.problems import UnknownModelError, content_responses, error_responses, problem
from megatalker.serving.server.speech_service import SpeechService
from megatalker.settings import ServerSettings
from megatalker.voices import list_languages, list_speakers
from megatalker.voices.mixing import mix_parts
from megatalker.voices.names import name_key


class Aliases:
    """The model served here, and the names that requests may use for it and for its voices."""

    def __init__(self, service: SpeechService, settings: ServerSettings) -> None:
        self.model = settings.model or service.engine.checkpoint.name
        self.model_aliases = settings.model_aliases
        self._service, self._configured = service, settings.voice_aliases

    def require_model(self, name: str) -> None:
        """Raise ``UnknownModelError`` unless this is the model, or an alias of it."""
        if name not in (self.model, *self.model_aliases):
            others = f", or one of its aliases {', '.join(self.model_aliases)}" if self.model_aliases else ""
            raise UnknownModelError(f"model is {name!r}, expected {self.model!r}, which is what is served here{others}")

    def voice(self, name: str | None) -> str | None:
        """Return the voice that a request means; voices of this name come before aliases."""
        if name is None or self._is_known(name):
            return name
        aliases = self.voices()
        parts = None if name in aliases else mix_parts(name)
        if parts is None:
            return aliases.get(name, name)
        meant = [(one if self._is_known(one) else aliases.get(one) or one, weight) for one, weight in parts]
        return "+".join(f"{one}:{weight!r}" for one, weight in meant)

    def voices(self) -> dict[str, str | None]:
        """Return what each alias means. Where nothing is configured, OpenAI's voices go round the voices known here,
        the default voice first; ``None`` is the voice of a request that names none.
        """
        if self._configured is not None:
            return dict(self._configured)
        return openai_voices(self._known(), self._service.engine.settings.voice)

    def _is_known(self, name: str) -> bool:
        speakers = list_speakers(self._service.engine.checkpoint)
        return name in self._service.voices or name_key(name) in map(name_key, speakers)

    def _known(self) -> list[str]:
        """Speakers of the checkpoint; what the server keeps where it has none."""
        return list_speakers(self._service.engine.checkpoint) or sorted(
            name for name, _ in self._service.voices.items()
        )


def model_routes(service: SpeechService, aliases: Aliases) -> APIRouter:
    """Return the routes that tell about the checkpoint."""
    router, began, checkpoint = APIRouter(), int(time.time()), service.engine.checkpoint

    def entry(name: str) -> dict[str, object]:
        return {
            "id": name,
            "name": name,
            "object": "model",
            "created": began,
            "owned_by": "megatalker",
            "checkpoint": checkpoint.name,
            "variant": checkpoint.config.variant,
            "size": checkpoint.config.size,
            "languages": list_languages(checkpoint),
            "sample_rate": SAMPLE_RATE,
            "follows_instructions": checkpoint.config.takes_instruct,
            "aliases": aliases.model_aliases,
            "voice_aliases": aliases.voices(),
        }

    @router.get("/v1/models")
    @router.get("/v1/audio/models")
    async def models() -> dict[str, object]:
        """The model that is served here; ``models`` is for voice pickers that look there."""
        found = [entry(aliases.model)]
        return {"object": "list", "data": found, "models": found}

    @router.get("/v1/models/{name:path}", responses=error_responses(404))
    async def model(name: str) -> dict[str, object]:
        """The model by its name, or by one of its aliases."""
        aliases.require_model(name)
        return entry(name)

    return router


TROUBLE_S = 30.0
"""Seconds after which trouble in the background is reported: a file that is being replaced is back by then."""


def health_routes(service: SpeechService) -> APIRouter:
    """Return the routes that a load balancer and Prometheus ask for, without a key."""
    router = APIRouter()

    @router.get("/live", responses=error_responses(503))
    async def live() -> JSONResponse:
        """200 while the process is worth keeping, also during warm-up; 503 when it has failed for good."""
        if service.failure is None:
            return JSONResponse({"status": "live"})
        return JSONResponse({"status": "failed", "error": problem(service.failure).model_dump()}, 503)

    @router.get("/ready", responses=error_responses(503))
    @router.get("/health", responses=error_responses(503))
    async def health() -> JSONResponse:
        """200 once the engine is warm, 503 before, while the server drains, and when nothing can be spoken any more.
        ``preparing`` is what the backend serves without until it is there, ``unprepared`` why it never will be,
        ``background`` what has failed for a while outside requests, such as following the settings file.
        """
        body: dict[str, object] = {"backend": service.engine.backend, "codec": service.engine.codec}
        body["status"] = service.status
        metrics = service.engine.metrics()
        if metrics.preparing is not None:
            body["preparing"] = metrics.preparing
        if metrics.unprepared is not None:
            body["unprepared"] = metrics.unprepared
        troubles = service.metrics.background.troubles(for_s=TROUBLE_S)
        if troubles:
            body["background"] = troubles
        if service.failure is not None:
            body["error"] = problem(service.failure).model_dump()
        return JSONResponse(body, 200 if service.ready else 503)

    @router.get(
        "/metrics", response_class=Response, responses=content_responses("Prometheus' text format.", "text/plain")
    )
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        content = await service.checks.run(partial(generate_latest, service.metrics.registry))
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    return router


DOCS_ASSETS = "docs/assets"
STATIC = Path(str(files("megatalker.serving.server") / "static"))
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "media-src": "blob:",  # a recording that is listened to before it is sent
    "connect-src": "'self' http: https: ws: wss:",  # another server, to compare with
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # may be kept, but is asked for again: files of two versions never meet
}


class _Files(StaticFiles):
    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type] # passed on as they are
        response.headers.update(HEADERS)
        return response


def serve_page(app: FastAPI) -> None:
    """Add the page to an application."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    app.mount("/static", _Files(directory=STATIC))


def serve_docs(app: FastAPI) -> None:
    """Add the page at ``/docs``, whose files lie at ``/docs/assets/``."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{DOCS_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{DOCS_ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{DOCS_ASSETS}/favicon.png",
        )

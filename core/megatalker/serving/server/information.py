"""What the server tells about itself: health, metrics and models."""

import time

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speaker import Speaker
from megatalker.voices import list_languages


def health_routes(speaker: Speaker) -> APIRouter:
    """What a load balancer and Prometheus ask for, without a key."""
    router = APIRouter()

    @router.get("/live")
    def live() -> JSONResponse:
        """200 while the process is worth keeping, also during warm-up; 503 when it has failed for good."""
        if speaker.failure is None:
            return JSONResponse({"status": "live"})
        return JSONResponse({"status": "failed", "error": problem(speaker.failure).model_dump()}, 503)

    @router.get("/ready")
    @router.get("/health")
    def health() -> JSONResponse:
        """200 once the engine is warm, 503 before, while the server drains, and when nothing can be spoken any more."""
        body: dict[str, object] = {"backend": speaker.engine.backend, "codec": speaker.engine.codec}
        body["status"] = speaker.status
        if speaker.failure is not None:
            body["error"] = problem(speaker.failure).model_dump()
        return JSONResponse(body, 200 if speaker.ready else 503)

    @router.get("/metrics")
    def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(generate_latest(speaker.meters.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def catalogue_routes(speaker: Speaker, model: str) -> APIRouter:
    """What can be asked for."""
    router, began, checkpoint = APIRouter(), int(time.time()), speaker.engine.checkpoint

    @router.get("/v1/models")
    def models() -> dict[str, object]:
        """The one model, as OpenAI lists them."""
        entry = {
            "id": model,
            "object": "model",
            "created": began,
            "owned_by": "megatalker",
            "checkpoint": checkpoint.name,
            "variant": checkpoint.config.variant,
            "size": checkpoint.config.size,
            "languages": list_languages(checkpoint),
            "sample_rate": SAMPLE_RATE,
        }
        return {"object": "list", "data": [entry]}

    return router

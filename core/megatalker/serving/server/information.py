"""What the server tells about itself: health and metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from megatalker.serving.server.openapi import bodies, errors
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speaker import Speaker

TROUBLE_S = 30.0
"""Trouble in the background that has lasted this long is told: a file that is being replaced is back by then."""


def health_routes(speaker: Speaker) -> APIRouter:
    """What a load balancer and Prometheus ask for, without a key."""
    router = APIRouter()

    @router.get("/live", responses=errors(503))
    def live() -> JSONResponse:
        """200 while the process is worth keeping, also during warm-up; 503 when it has failed for good."""
        if speaker.failure is None:
            return JSONResponse({"status": "live"})
        return JSONResponse({"status": "failed", "error": problem(speaker.failure).model_dump()}, 503)

    @router.get("/ready", responses=errors(503))
    @router.get("/health", responses=errors(503))
    def health() -> JSONResponse:
        """200 once the engine is warm, 503 before, while the server drains, and when nothing can be spoken any more.
        ``preparing`` is what the backend serves without until it is there, ``unprepared`` why it never will be,
        ``background`` what has failed beside the requests for a while, such as following the settings file.
        """
        body: dict[str, object] = {"backend": speaker.engine.backend, "codec": speaker.engine.codec}
        body["status"] = speaker.status
        metrics = speaker.engine.metrics()
        if metrics.preparing is not None:
            body["preparing"] = metrics.preparing
        if metrics.unprepared is not None:
            body["unprepared"] = metrics.unprepared
        troubles = speaker.meters.background.troubles(for_s=TROUBLE_S)
        if troubles:
            body["background"] = troubles
        if speaker.failure is not None:
            body["error"] = problem(speaker.failure).model_dump()
        return JSONResponse(body, 200 if speaker.ready else 503)

    @router.get("/metrics", response_class=Response, responses=bodies("Prometheus' text format.", "text/plain"))
    def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(generate_latest(speaker.meters.registry), media_type=CONTENT_TYPE_LATEST)

    return router

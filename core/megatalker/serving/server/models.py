"""``GET /v1/models``: the one model, as OpenAI and voice pickers list them."""

import time

from fastapi import APIRouter

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.serving.server.aliases import Aliases
from megatalker.serving.server.openapi import errors
from megatalker.serving.server.speaker import Speaker
from megatalker.voices import list_languages


def model_routes(speaker: Speaker, aliases: Aliases) -> APIRouter:
    """The routes over this speaker's checkpoint."""
    router, began, checkpoint = APIRouter(), int(time.time()), speaker.engine.checkpoint

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
    def models() -> dict[str, object]:
        """The model that is served here; ``models`` is for voice pickers that look there."""
        found = [entry(aliases.model)]
        return {"object": "list", "data": found, "models": found}

    @router.get("/v1/models/{name:path}", responses=errors(404))
    def model(name: str) -> dict[str, object]:
        """The model by its name, or by one of its aliases."""
        aliases.require_model(name)
        return entry(name)

    return router

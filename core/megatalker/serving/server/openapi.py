"""What ``/openapi.json`` says beyond what FastAPI finds out: errors as they are, and their one body."""

import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

ANYWHERE = (403, 408, 500, 503)
"""A host or page that may not ask, a request that does not come whole, a defect, too many connections."""


class ErrorDetails(BaseModel):
    """What is wrong, in OpenAI's fields."""

    type: str
    """An error of ``megatalker.errors``, or ``InternalError``."""
    message: str
    code: str
    """The same in a word that does not change, such as ``model_not_found``."""
    param: str | None
    """The field of the request that is wrong, where it is one."""


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetails


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses`` for errors that a route answers with."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


_EVENT = {
    "schema": {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": {"enum": ["speech.audio.delta", "speech.audio.words", "speech.audio.done", "error"]}
                    },
                },
            }
        },
    }
}
"""One event of a stream, as OpenAPI describes them: its ``data`` is JSON."""


def bodies(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses`` for a success that is not JSON."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {media_type: _EVENT if media_type == "text/event-stream" else binary for media_type in media_types}
    return {200: {"description": description, "content": content}}


def describe(app: FastAPI) -> None:
    """Correct the schema of an application all of whose routes are there."""
    found = app.openapi

    def corrected() -> dict[str, Any]:
        if app.openapi_schema is None:
            _correct(found())
        return found()

    app.openapi = corrected  # type: ignore[method-assign] # FastAPI's own way


TAGS = {
    "speech": ("Text in, audio out while it is made.", ("/v1/audio/speech", "/tts/")),
    "voices": ("Speakers of the checkpoint, and voices that the server keeps.", ("/v1/voices", "/v1/audio/voices")),
    "models": ("What ``model`` may be in a request.", ("/v1/models", "/v1/audio/models")),
    "keys": ("Tokens in the name of a key.", ("/v1/tokens",)),
    "operation": ("For probes and Prometheus.", ("/",)),
}
"""Groups of routes: what they are about, and how their paths begin. The first that fits counts."""


def _tag(path: str) -> str:
    return next(tag for tag, (_, beginnings) in TAGS.items() if path.startswith(beginnings))


def _correct(schema: dict[str, Any]) -> None:
    schema["tags"] = [{"name": tag, "description": about} for tag, (about, _) in TAGS.items()]
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["tags"] = [_tag(path)]
            sentence = re.split(r"[.:](?:\s|$)", operation.get("description", ""), maxsplit=1)[0]
            operation["summary"] = " ".join(sentence.split()).replace("`", "") or operation["summary"]
    for operation in (operation for path in schema["paths"].values() for operation in path.values()):
        responses = operation["responses"]
        responses.pop("422", None)  # FastAPI's own answer to what does not fit; ours is 400
        with_body = (400, 413) if "requestBody" in operation else ()
        keyed = (401,) if "security" in operation else ()
        for status in (*ANYWHERE, *with_body, *keyed):
            responses.setdefault(str(status), _ERROR | {"description": HTTPStatus(status).phrase})
    components = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    components |= {model.__name__: model.model_json_schema(ref_template=_REF) for model in (ErrorDetails, ErrorBody)}
    components["ErrorBody"].pop("$defs", None)
    for operation in (operation for path in schema["paths"].values() for operation in path.values()):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "title" in body.get("schema", {}):  # of a route that reads its body itself
            name = body["schema"]["title"]
            components[name], body["schema"] = body["schema"], {"$ref": _REF.format(model=name)}


_REF = "#/components/schemas/{model}"
_ERROR = {"content": {"application/json": {"schema": {"$ref": _REF.format(model="ErrorBody")}}}}

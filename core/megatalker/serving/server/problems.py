"""Errors as clients see them: a status and a JSON body, and how ``/openapi.json`` describes both."""

import errno
import math
import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from megatalker.errors import (
    BackendFaultError,
    CapacityError,
    EngineClosedError,
    IncompleteSpeechError,
    InvalidRequestError,
    MegatalkerError,
    UnsupportedError,
)
from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.messages import Problem
from megatalker.voices.folder import StorageError, StorageFullError, VoiceExistsError

RETRY_AFTER_S = 1.0
"""``Retry-After`` where nothing better is known."""
RETRIED = (429, 503)
"""Statuses of what may succeed later."""


class NotReadyError(CapacityError):
    """The server is still warming up."""


class DrainingError(CapacityError):
    """The server is about to stop."""


class TooManyConnectionsError(CapacityError):
    """The limit of open connections is reached."""

    def __init__(self) -> None:
        super().__init__(
            "too many connections are open, and this caller has its share of them; try again, or raise the server's "
            "setting max_connections"
        )


class AuthenticationError(InvalidRequestError):
    """The API key is missing or wrong."""


class ForbiddenError(InvalidRequestError):
    """The caller lacks the permission."""


class HostError(ForbiddenError):
    """The server does not answer for this ``Host``."""


class OriginError(ForbiddenError):
    """Pages of this ``Origin`` may not ask."""


class UnknownVoiceError(FieldError):
    """There is no such voice."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "voice")


class NoRouteError(InvalidRequestError):
    """There is nothing at this path, or not for this method."""


class TooLongError(InvalidRequestError):
    """A body exceeds what the server reads."""

    def __init__(self) -> None:
        super().__init__(
            "the body is too long; send less, or raise the server's setting max_message_bytes (for voices, "
            "max_upload_bytes)"
        )


class UnknownModelError(FieldError):
    """Another model than the one served was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "model")


_ANSWERS: dict[type[MegatalkerError], tuple[int, str | None]] = {
    NotReadyError: (503, "model_loading"),
    DrainingError: (503, "server_draining"),
    TooManyConnectionsError: (503, "rate_limit_exceeded"),
    AuthenticationError: (401, "invalid_api_key"),
    ForbiddenError: (403, None),
    TooLongError: (413, None),
    UnknownModelError: (404, "model_not_found"),
    UnknownVoiceError: (404, "voice_not_found"),
    VoiceExistsError: (409, None),
    StorageFullError: (507, "storage_unavailable"),
    StorageError: (503, "storage_unavailable"),
    InvalidRequestError: (400, None),
    UnsupportedError: (400, None),
    CapacityError: (429, "rate_limit_exceeded"),
    EngineClosedError: (503, None),
    BackendFaultError: (500, "backend_fault"),
    IncompleteSpeechError: (500, "incomplete_speech"),
}
"""The status of an error, and its word for programs unless that is the status's own. The first class that fits counts;
500 where none does.
"""


def problem(error: BaseException) -> Problem:
    """The error by its public name; what nobody intended is told without details, which belong in the log."""
    if isinstance(error, MegatalkerError):
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == MegatalkerError.__module__)
        retry_after_s = _retry_after_s(error) if _answer(error)[0] in RETRIED else None
        message = str(error).encode(errors="backslashreplace").decode()  # halves of characters cannot be sent
        return Problem(type=public.__name__, message=message, retry_after_s=retry_after_s)
    return Problem(type="InternalError", message=f"the server failed ({type(error).__name__}); its log says more")


def storage_trouble(error: OSError) -> StorageError | None:
    """Return the error for clients where the machine's disk refuses: an upload too large for memory goes there."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError("the server has no room for the request; try again, or send less")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) or "temporary directory" in str(error):
        return StorageError("the server cannot store the request; try again later")
    return None


def respond(error: BaseException, status: int | None = None, param: str | None = None) -> JSONResponse:
    """The error as an HTTP response: ``{"error": {"type", "message", "code", "param"}}``, OpenAI's fields.

    ``status`` overrides the one that goes with the class of the error, ``param`` names the field that is wrong.
    """
    code = status or _answer(error)[0]
    headers = {}
    if code in RETRIED:
        headers["Retry-After"] = str(math.ceil(_retry_after_s(error)))
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": error_details(error, code, param)}, code, headers)


def error_details(error: BaseException, status: int | None = None, param: str | None = None) -> dict[str, Any]:
    """Return OpenAI's fields of an error: ``type``, ``message``, ``code`` and ``param``."""
    known, word = _answer(error)
    if isinstance(error, FieldError):
        param = error.field
    told = problem(error).model_dump(exclude={"retry_after_s"})  # which is in the header
    word = word or HTTPStatus(status or known).phrase.lower().replace(" ", "_").replace("-", "_")
    return {**told, "code": word, "param": param}


def _answer(error: BaseException) -> tuple[int, str | None]:
    return next((answer for kind, answer in _ANSWERS.items() if isinstance(error, kind)), (500, None))


def _retry_after_s(error: BaseException) -> float:
    known = error.retry_after_s if isinstance(error, CapacityError) else None
    return RETRY_AFTER_S if known is None else known


ANYWHERE = (403, 408, 500, 503)
"""A host or page that may not ask, a request that does not come whole, a defect, too many connections."""


class ErrorDetails(BaseModel):
    """Description of an error, in OpenAI's fields."""

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


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's ``responses`` for errors that a route answers with."""
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


def content_responses(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's ``responses`` for a success that is not JSON."""
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

"""Errors as clients see them: a status, and a JSON body that names type and message."""

import errno
import math
from http import HTTPStatus

from fastapi.responses import JSONResponse

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
"""Where nothing better is known."""
RETRIED = (429, 503)
"""Statuses of what may succeed later."""


class NotReadyError(CapacityError):
    """The server is still warming up."""


class DrainingError(CapacityError):
    """The server is about to stop."""


class TooManyConnectionsError(CapacityError):
    """As many connections are open as may be."""

    def __init__(self) -> None:
        super().__init__(
            "too many connections are open, and this caller has its share of them; try again, or raise the server's "
            "setting max_connections"
        )


class AuthenticationError(InvalidRequestError):
    """The API key is missing or wrong."""


class ForbiddenError(InvalidRequestError):
    """Whoever asks may not have this."""


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


_STATUS: dict[type[MegatalkerError], int] = {
    NotReadyError: 503,
    DrainingError: 503,
    TooManyConnectionsError: 503,
    AuthenticationError: 401,
    ForbiddenError: 403,
    TooLongError: 413,
    UnknownModelError: 404,
    UnknownVoiceError: 404,
    VoiceExistsError: 409,
    StorageFullError: 507,
    StorageError: 503,
    InvalidRequestError: 400,
    UnsupportedError: 400,
    CapacityError: 429,
    EngineClosedError: 503,
}
"""The first that fits; 500 where none does."""


_WORDS: dict[type[MegatalkerError], str] = {
    NotReadyError: "model_loading",
    DrainingError: "server_draining",
    AuthenticationError: "invalid_api_key",
    UnknownModelError: "model_not_found",
    UnknownVoiceError: "voice_not_found",
    StorageError: "storage_unavailable",
    CapacityError: "rate_limit_exceeded",
    BackendFaultError: "backend_fault",
    IncompleteSpeechError: "incomplete_speech",
}


def problem(error: BaseException) -> Problem:
    """The error by its public name; what nobody intended is told without details, which belong in the log."""
    if isinstance(error, MegatalkerError):
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == MegatalkerError.__module__)
        retry_after_s = _retry_after_s(error) if _status(error) in RETRIED else None
        message = str(error).encode(errors="backslashreplace").decode()  # halves of characters cannot be sent
        return Problem(type=public.__name__, message=message, retry_after_s=retry_after_s)
    return Problem(type="InternalError", message=f"the server failed ({type(error).__name__}); its log says more")


def storage_trouble(error: OSError) -> StorageError | None:
    """What the machine's disk refuses, as an error for clients: an upload that is too large for memory goes there."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError("the server has no room for the request; try again, or send less")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) or "temporary directory" in str(error):
        return StorageError("the server cannot store the request; try again later")
    return None


def respond(error: BaseException, status: int | None = None, param: str | None = None) -> JSONResponse:
    """The error as an HTTP response: ``{"error": {"type", "message", "code", "param"}}``, OpenAI's fields.

    ``status`` overrides the one that goes with the class of the error, ``param`` names the field that is wrong.
    """
    code = status or _status(error)
    headers = {}
    if code in RETRIED:
        headers["Retry-After"] = str(math.ceil(_retry_after_s(error)))
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, FieldError):
        param = error.field
    told = problem(error).model_dump(exclude={"retry_after_s"})  # which is in the header
    return JSONResponse({"error": {**told, "code": _word(error, code), "param": param}}, code, headers)


def _status(error: BaseException) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def _retry_after_s(error: BaseException) -> float:
    known = error.retry_after_s if isinstance(error, CapacityError) else None
    return RETRY_AFTER_S if known is None else known


def _word(error: BaseException, status: int) -> str:
    """A word for programs: of the class of the error where OpenAI has one, else of the status."""
    known = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), None)
    return known or HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")

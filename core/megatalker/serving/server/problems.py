"""Errors as clients see them: a status, and a JSON body that names type and message."""

import math

from fastapi.responses import JSONResponse

from megatalker.errors import (
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
    UnsupportedError,
)
from megatalker.serving.protocol.messages import Problem

RETRY_AFTER_S = 1.0


class NotReadyError(CapacityError):
    """The server is still warming up."""


class DrainingError(CapacityError):
    """The server is about to stop."""


class AuthenticationError(InvalidRequestError):
    """The API key is missing or wrong."""


class UnknownModelError(InvalidRequestError):
    """Another model than the one served was asked for."""


_STATUS: dict[type[MegatalkerError], int] = {
    NotReadyError: 503,
    DrainingError: 503,
    AuthenticationError: 401,
    UnknownModelError: 404,
    InvalidRequestError: 400,
    UnsupportedError: 400,
    CapacityError: 429,
    EngineClosedError: 503,
}
"""The first that fits; 500 where none does."""


def problem(error: BaseException) -> Problem:
    """The error by its public name; what nobody intended is told without details, which belong in the log."""
    if isinstance(error, MegatalkerError):
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == MegatalkerError.__module__)
        return Problem(type=public.__name__, message=str(error))
    return Problem(type="InternalError", message=f"the server failed ({type(error).__name__}); its log says more")


def respond(error: BaseException, status: int | None = None) -> JSONResponse:
    """The error as an HTTP response: ``{"error": {"type": ..., "message": ...}}``, as OpenAI's clients expect it.

    ``status`` overrides the one that goes with the class of the error.
    """
    code = status or next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    headers = {}
    if code in (429, 503):
        headers["Retry-After"] = str(math.ceil(RETRY_AFTER_S))
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": problem(error).model_dump()}, code, headers)

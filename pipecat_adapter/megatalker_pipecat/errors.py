"""Which of Pipecat's error categories an engine's error belongs to."""

from pipecat.utils.errors import ErrorCategory

from megatalker.errors import (
    BackendFaultError,
    BackendNotFoundError,
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    ConnectionFailedError,
    EngineClosedError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)

_IMPOSSIBLE = (
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)
_DEAD = (BackendFaultError, EngineClosedError)


def category_of(error: BaseException) -> ErrorCategory | None:
    """The category of an error of ours, ``None`` for others. An impossible request is permanent, a full engine not."""
    if isinstance(error, CapacityError):
        return ErrorCategory.RATE_LIMIT
    if isinstance(error, ConnectionFailedError):
        return ErrorCategory.CONNECTIVITY
    if isinstance(error, _DEAD):
        return ErrorCategory.SERVER
    return ErrorCategory.INVALID_REQUEST if isinstance(error, _IMPOSSIBLE) else None


def category_of_text(error: BaseException) -> ErrorCategory | None:
    """As :func:`category_of`, where the settings are known to be good: then it is this text that cannot be spoken.

    That says nothing about the next text, so the category is one that leaves the service usable.
    """
    category = category_of(error)
    return ErrorCategory.APPLICATION if category is ErrorCategory.INVALID_REQUEST else category


def engine_is_gone(error: BaseException) -> bool:
    """No further request can succeed on the engine that raised this."""
    return isinstance(error, _DEAD)

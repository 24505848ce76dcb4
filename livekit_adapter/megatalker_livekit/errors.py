"""The framework's errors for an engine's: which status, and whether the same request may succeed later."""

from livekit.agents import APIConnectionError, APIError, APIStatusError

from megatalker.errors import CapacityError, ConnectionFailedError, EngineClosedError, MegatalkerError
from megatalker.serving.shared_engines.pool import IMPOSSIBLE


def api_error(error: MegatalkerError, *, again: bool = True) -> APIError:
    """Return the framework's error for one of ours.

    Args:
        error: what the engine said.
        again: another attempt could help, whatever the error: no audio was handed out, and the engine can be replaced.
    """
    if isinstance(error, ConnectionFailedError):
        return APIConnectionError(str(error), retryable=again)
    return APIStatusError(str(error), status_code=_status(error), retryable=again)


def _status(error: MegatalkerError) -> int:
    """Return the status that the server answers; the framework never repeats a request after 400."""
    if isinstance(error, IMPOSSIBLE):
        return 400
    if isinstance(error, CapacityError):
        return 429
    return 503 if isinstance(error, EngineClosedError) else 500

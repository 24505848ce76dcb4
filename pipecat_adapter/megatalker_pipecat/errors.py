"""Maps the engine's errors to Pipecat's error categories."""

from pipecat.utils.errors import ErrorCategory

from megatalker.errors import CapacityError, ConnectionFailedError, IncompleteSpeechError
from megatalker.serving.shared_engines.pool import GONE, IMPOSSIBLE


def category_of(error: BaseException) -> ErrorCategory | None:
    """Return the category of an error of ours, ``None`` for others.

    An impossible request is permanent; a full engine, or incomplete speech, is not.
    """
    if isinstance(error, CapacityError):
        return ErrorCategory.RATE_LIMIT
    if isinstance(error, ConnectionFailedError):
        return ErrorCategory.CONNECTIVITY
    if isinstance(error, IncompleteSpeechError):
        return ErrorCategory.APPLICATION
    if isinstance(error, GONE):
        return ErrorCategory.SERVER
    return ErrorCategory.INVALID_REQUEST if isinstance(error, IMPOSSIBLE) else None


def category_of_text(error: BaseException) -> ErrorCategory | None:
    """Return the category of an error in speaking a text, where the settings are known to be good.

    A text that cannot be spoken says nothing about the next text, so its category leaves the service usable.
    """
    category = category_of(error)
    return ErrorCategory.APPLICATION if category is ErrorCategory.INVALID_REQUEST else category

"""Every error the engine raises on purpose, and one wording for what pydantic finds wrong.

Each message names what is wrong, what was expected and what to do. Catch :class:`MegatalkerError` to catch them all.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

__all__ = [
    "BackendFaultError",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "CapacityError",
    "CheckpointError",
    "ConnectionFailedError",
    "EngineClosedError",
    "IncompleteSpeechError",
    "InvalidRequestError",
    "MalformedResultError",
    "MarkupError",
    "MegatalkerError",
    "PluginError",
    "SettingsError",
    "UnsupportedError",
]


class MegatalkerError(Exception):
    """Base class of all errors raised by megatalker."""


class InvalidRequestError(MegatalkerError, ValueError):
    """An argument that can never work: bad text, voice, language, sampling value, audio or tensor shape."""


class MarkupError(InvalidRequestError):
    """Text with markup is not well formed, or asks for what is not there; the message says in which line and column."""


class SettingsError(MegatalkerError, ValueError):
    """A setting is unknown or has an impossible value."""


class CheckpointError(MegatalkerError):
    """A checkpoint is missing, incomplete, damaged or of another shape than its configuration says."""


class PluginError(MegatalkerError):
    """A plug-in cannot be registered: duplicate name, wrong API version, broken import or a malformed specification."""


class BackendNotFoundError(MegatalkerError, LookupError):
    """No installed plug-in provides a backend of this name."""


class BackendUnavailableError(MegatalkerError):
    """The backend is installed but cannot run this checkpoint on this device; the message says why."""


class BackendFaultError(MegatalkerError):
    """A backend raised, returned malformed results or exceeded its deadline, and no other backend could take over."""


class MalformedResultError(MegatalkerError, RuntimeError):
    """A backend broke its contract: what it returned is not what :mod:`megatalker.interfaces` asks for."""


class CapacityError(MegatalkerError):
    """A limit of the engine or of a backend is reached for now; the same request may succeed later."""

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds until all requests before it should be served, where that is known; others may come meanwhile."""


class IncompleteSpeechError(MegatalkerError):
    """The speech is over and leaves out some of its text; the message says how much, and why. Its audio is good."""


class UnsupportedError(MegatalkerError, NotImplementedError):
    """The backend or checkpoint does not have this optional ability."""


class EngineClosedError(MegatalkerError, RuntimeError):
    """The engine was closed; open a new one."""


class ConnectionFailedError(MegatalkerError, ConnectionError):
    """A megatalker server cannot be reached, stopped answering, or the connection to it broke."""


def named_error(name: str, message: str, retry_after_s: float | None = None) -> MegatalkerError:
    """Return the error of this class, as it came from another process; ``MegatalkerError`` for a class unknown here."""
    if name == CapacityError.__name__:
        return CapacityError(message, retry_after_s=retry_after_s)
    known: type[MegatalkerError] | None = globals()[name] if name in __all__ else None
    return MegatalkerError(f"{name}: {message}") if known is None else known(message)


def describe_error(error: BaseException) -> str:
    """Return the error's class and text, for messages. Never raises, even where printing a foreign class does."""
    try:
        text = str(error)
    except BaseException as broken:
        text = f"its text cannot be read, for that raised {type(broken).__name__}"
    return f"{type(error).__name__}: {text}"


def explain_validation(
    faults: Iterable[Mapping[str, Any]], *, noun: str = "", table: str = "", known: Collection[str] = (), skip: int = 0
) -> str:
    """Describe in words what pydantic refused: each key with the value found and the value expected.

    Args:
        faults: ``errors()`` of pydantic's (or FastAPI's) validation error.
        noun: the word for a key, such as ``setting``.
        table: prefix of each key, such as ``backends.compiled``.
        known: all keys there are, with ``table`` in front, for a suggestion when one is unknown.
        skip: how many leading parts of a key's path name no key.
    """
    found = list(faults)
    told = [_explain(fault, noun, table, known, skip) for fault in found[:_MOST_EXPLAINED]]
    more = len(found) - len(told)
    return "; ".join([*told, *([f"and {more} more"] if more else [])])


_MOST_EXPLAINED = 10


_UNION_TAGS = ("function-", "literal[")
"""Prefixes of pydantic's names for the alternatives of a value; they are no keys."""


def _explain(fault: Mapping[str, Any], noun: str, table: str, known: Collection[str], skip: int) -> str:
    path = [str(part) for part in (fault["loc"][skip:] or fault["loc"])]
    path = [part for part in path if not part.startswith(_UNION_TAGS)]
    key = ".".join(([table] if table else []) + path)
    if fault["type"] == "json_invalid":
        return f"this is not JSON: {fault['ctx']['error']}"
    if fault["type"] == "extra_forbidden":
        return f"unknown {noun or 'key'} {key!r}{suggest(key, known)}"
    name = f"{noun} {key!r}" if noun else key or "the message"
    if fault["type"] == "missing":
        return f"{name} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if noun == "setting" and (any(map(_SECRET_NAME.search, path[-2:])) or fault["type"] in _TABLE_EXPECTED):
        return f"{name} (its value is not shown): {message}"
    return f"{name} is {_short(_masked(fault['input']))}: {message}"


_SECRET_NAME = re.compile(r"(^|_)(keys?|hash|secret|password|passwd|token|credentials?)(_env)?$", re.IGNORECASE)
"""Settings that are secrets or hold them, by the last word of their names."""
_TABLE_EXPECTED = ("dict_type", "mapping_type", "model_type", "model_attributes_type")
"""Faults of values that stand where a table is expected, maybe one of secrets."""


def _masked(value: object) -> object:
    """A table without what may be secret in it."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: "***" if _SECRET_NAME.search(str(name)) or isinstance(inner, Mapping | list | tuple) else inner
        for name, inner in value.items()
    }


def suggest(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: the known one that is meant, or all that there are."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Every error the engine raises on purpose.

Each message names what is wrong, what was expected and what to do. Catch :class:`MegatalkerError` to catch them all.
"""

__all__ = [
    "BackendFaultError",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "CapacityError",
    "CheckpointError",
    "ConnectionFailedError",
    "EngineClosedError",
    "InvalidRequestError",
    "MalformedResultError",
    "MegatalkerError",
    "PluginError",
    "SettingsError",
    "UnsupportedError",
]


class MegatalkerError(Exception):
    """Base class of all errors raised by megatalker."""


class InvalidRequestError(MegatalkerError, ValueError):
    """What the caller passed can never work: bad text, voice, language, sampling value, audio or tensor shape."""


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


class UnsupportedError(MegatalkerError, NotImplementedError):
    """The backend or checkpoint does not have this optional ability."""


class EngineClosedError(MegatalkerError, RuntimeError):
    """The engine was closed; open a new one."""


class ConnectionFailedError(MegatalkerError, ConnectionError):
    """A megatalker server cannot be reached, stopped answering, or the connection to it broke."""

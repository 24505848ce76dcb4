"""What an engine's error says about further requests."""

from megatalker.errors import (
    BackendFaultError,
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    EngineClosedError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)

IMPOSSIBLE = (
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)
"""The same request, or an engine of the same settings, can never work."""
GONE = (BackendFaultError, EngineClosedError)
"""No further request can succeed on the engine that raised this."""

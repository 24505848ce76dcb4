"""The former place of :mod:`megatalker.serving.shared_engines.pool`; it goes away with the next version."""

import warnings

from megatalker.serving.shared_engines.pool import EnginePool, Lease

__all__ = ["EnginePool", "Lease"]

warnings.warn(
    "megatalker.serving.sessions.engines is megatalker.serving.shared_engines.pool now; import from there",
    DeprecationWarning,
    stacklevel=2,
)

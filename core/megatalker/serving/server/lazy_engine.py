"""The engine of a server, opened after the server listens: at its start, or at the first request."""

import threading
from collections.abc import Callable
from typing import Any

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, EngineMetrics, SpeechStream
from megatalker.engine.interpreter import spare_what_is_loaded, switch_threads_often
from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import EngineClosedError, MegatalkerError
from megatalker.serving.processes import ProcessEngine
from megatalker.serving.server.defaults import engine_devices
from megatalker.settings import Settings

OpenEngine = Engine | ProcessEngine


def open_processes(settings: Settings, checkpoint: Checkpoint) -> ProcessEngine:
    """Open an engine process for each device that the settings name."""
    return ProcessEngine.open(settings, checkpoint=checkpoint, devices=engine_devices(settings))


class LazyEngine:
    """Opens the engine in :meth:`warmup`; until then its backends are the ones in the settings. Thread-safe.

    Args:
        settings: the engine's.
        checkpoint: already open.
        open_engine: by default opens engine processes, one for each device of ``settings.server.devices``.
    """

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        open_engine: Callable[[Settings, Checkpoint], OpenEngine] | None = None,
    ) -> None:
        self.settings, self.checkpoint = settings, checkpoint
        self._open_engine = open_processes if open_engine is None else open_engine
        self._engine: OpenEngine | None = None
        self._closed = False
        self._opening = threading.Lock()

    @property
    def backend(self) -> str:
        """Name of the talker backend in use, or of the one asked for."""
        return self.settings.backend if self._engine is None else self._engine.backend

    @property
    def codec(self) -> str:
        """Name of the codec in use, or of the one asked for."""
        return self.settings.codec if self._engine is None else self._engine.codec

    @property
    def failure(self) -> MegatalkerError | None:
        """See :attr:`Engine.failure <megatalker.engine.Engine.failure>`."""
        if self._engine is not None:
            return self._engine.failure
        return _closed() if self._closed else None

    def warmup(self) -> None:
        """Open the engine, unless that was done, and warm it up; raises what either raises. What the process has loaded
        by then is taken to stay, and its threads to serve the engine.
        """
        self._opened().warmup()
        spare_what_is_loaded()
        switch_threads_often()

    def speak_for(
        self, owner: str, text: str | None, options: SpeechOptions | None = None, **changes: Any
    ) -> SpeechStream:
        """Open the engine if need be, then :meth:`Engine.speak_for <megatalker.engine.Engine.speak_for>`."""
        return self._opened().speak_for(owner, text, options, **changes)

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Open the engine if need be, then :meth:`Engine.check <megatalker.engine.Engine.check>`."""
        self._opened().check(options, **changes)

    def metrics(self) -> EngineMetrics:
        """The engine's counters; none has counted anything before it is open."""
        if self._engine is not None:
            return self._engine.metrics()
        return EngineMetrics.nothing(self.backend, self.codec)

    def close(self) -> None:
        """Close the engine; one that is being opened is waited for."""
        with self._opening:
            self._closed = True
            if self._engine is not None:
                self._engine.close()

    def _opened(self) -> OpenEngine:
        with self._opening:
            if self._closed:
                raise _closed()
            if self._engine is None:
                self._engine = self._open_engine(self.settings, self.checkpoint)
            return self._engine


def _closed() -> EngineClosedError:
    return EngineClosedError("this engine is closed; open a new one")


ServedEngine = OpenEngine | LazyEngine
"""An engine that a server can serve."""

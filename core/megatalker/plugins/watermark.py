"""Watermarks: the contract of a plug-in that marks speech inaudibly, and the installed ones.

A plug-in is a :class:`WatermarkPlugin` that its distribution's metadata names in the entry-point group
``megatalker.watermarks``. None is imported before it is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.plugins.installed import PluginGroup

WATERMARKS = "megatalker.watermarks"
NO_WATERMARK = "none"
WATERMARK_API = 1

Samples = NDArray[np.float32]


class MarkingStream(ABC):
    """Marks one utterance. Used by one thread at a time; holds no more than its own state.

    It is fed frame by frame, so that its samples cannot depend on how the engine cut the speech into chunks.
    """

    @abstractmethod
    def mark(self, frame: Samples) -> Samples:
        """Take the next frame and return what is ready.

        Args:
            frame: float32 ``[1920]`` at 24 kHz, full scale 1. Must not be changed.

        Returns:
            Float32 ``[n * 1920]``, ``n`` from 0.
        """

    @abstractmethod
    def finish(self) -> Samples:
        """Return the rest, float32 ``[n * 1920]``; all results together are as long as all frames. Called last."""


class WatermarkModel(ABC):
    """A loaded watermark. Its methods are thread-safe."""

    @abstractmethod
    def open(self) -> MarkingStream:
        """Begin an utterance."""

    @abstractmethod
    def detect(self, samples: Samples) -> float:
        """Look for the mark.

        Args:
            samples: float32 ``[n]``, mono, 24 kHz, 0.5 s at least and 60 s at most.

        Returns:
            The confidence from 0 to 1 that the mark is there.
        """


@dataclass(frozen=True, slots=True)
class WatermarkPlugin:
    """A watermark that can be installed."""

    name: str
    summary: str
    """One line."""
    delay_frames: int
    """Frames of 80 ms that must follow a frame before it is ready."""
    threshold: float
    """Confidence from which :meth:`WatermarkModel.detect` counts as a find."""
    load: Callable[[], WatermarkModel]
    """Loads the model, once for each engine; raises ``UnsupportedError`` where a package or its weights are missing."""
    would_download: Callable[[], str | None] = lambda: None
    """Says what :attr:`load` would download now, and from where, without loading anything; ``None``: nothing."""
    api_version: int = WATERMARK_API


_GROUP = PluginGroup("watermark", WATERMARKS, WatermarkPlugin, WATERMARK_API, NO_WATERMARK)
watermark_names, find_watermark = _GROUP.names, _GROUP.find


def load_watermark(name: str) -> WatermarkModel | None:
    """Load the watermark that the setting ``watermark`` names; ``None`` for ``none``.

    Raises:
        SettingsError: none is installed under this name.
        PluginError: it cannot be imported or loaded, or is none.
        UnsupportedError: a package or weights that it needs are missing.
    """
    return None if name == NO_WATERMARK else open_watermark(find_watermark(name))


def open_watermark(plugin: WatermarkPlugin) -> WatermarkModel:
    """Load a plug-in's model; raises as :func:`load_watermark`."""
    return _GROUP.open(plugin.name, plugin.load)

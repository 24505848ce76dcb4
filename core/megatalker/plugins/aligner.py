"""Aligners: the contract of a plug-in that finds out when each word of finished speech is spoken.

A plug-in is an :class:`AlignerPlugin` that its distribution's metadata names in the entry-point group
``megatalker.aligners``. None is imported before it is asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.plugins.installed import PluginGroup

ALIGNERS = "megatalker.aligners"
ESTIMATE = "estimate"
"""No aligner: word times are estimates."""
ALIGNER_API = 1


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment of text that was spoken to its end."""

    text: str
    """Clean text, with its white space."""
    words: tuple[str, ...]
    """Its words in order, punctuation included; in Chinese and Japanese each character is one."""
    language: str | None
    """Its name in checkpoints, in lower case, such as ``english``; ``None``: the model was left to find out."""
    samples: NDArray[np.float32]
    """Its audio, float32 ``[n]``, mono, 24 kHz, full scale 1. Must not be changed."""


class Aligner(ABC):
    """A loaded aligner. Several threads call it, each for a segment of its own."""

    @abstractmethod
    def align(self, segment: SpokenSegment) -> Sequence[tuple[float, float]]:
        """Find the words of a segment in its audio. May take its time: nobody waits for it while audio is made.

        Returns:
            Begin and end of each word in seconds from the start of the audio, in order: no begin is earlier than the
            one before. Anything else, and any exception, is logged, and the times of this segment stay estimates.
        """


@dataclass(frozen=True, slots=True)
class AlignerPlugin:
    """An aligner that can be installed."""

    name: str
    summary: str
    """One line."""
    load: Callable[[], Aligner]
    """Loads the model, once for each engine; raises ``UnsupportedError`` where a package or its weights are missing."""
    api_version: int = ALIGNER_API


_GROUP = PluginGroup("aligner", ALIGNERS, AlignerPlugin, ALIGNER_API, ESTIMATE)
find_aligner = _GROUP.find


def load_aligner(name: str) -> Aligner | None:
    """Load the aligner that the setting ``aligner`` names; ``None`` for ``estimate``.

    Raises:
        SettingsError: none is installed under this name.
        PluginError: it cannot be imported or loaded, or is none.
        UnsupportedError: a package or weights that it needs are missing.
    """
    return None if name == ESTIMATE else _GROUP.open(name, find_aligner(name).load)

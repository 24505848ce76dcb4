"""Libraries that judges need: whether they are installed, and in which version."""

import importlib.metadata
import importlib.util
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from megatalker.plugins.judges import JudgeContext
from megatalker.plugins.recogniser_input import RATE, to_16_khz

SHORTEST = RATE // 2
"""Shorter recordings are filled up with silence: models of speakers fail at a few samples."""


def needs(
    module: str, install: str, *, languages: frozenset[str] | None = None
) -> Callable[[JudgeContext], str | None]:
    """Return a probe: is the module installed, and the language one of these (``None``: any)?"""

    def probe(context: JudgeContext) -> str | None:
        if languages is not None and context.language not in languages:
            return f"it knows {', '.join(sorted(languages))}, not {context.language}"
        return None if importlib.util.find_spec(module) else f"{module} is not installed; {install}"

    return probe


def version_of(distribution: str, model: str) -> Callable[[JudgeContext], str]:
    """Return a version: that of the distribution, and the model, by default ``model``."""

    def version(context: JudgeContext) -> str:
        return f"{distribution} {importlib.metadata.version(distribution)}, {context.model or model}"

    return version


def at_16_khz(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """``[samples]`` at 16 kHz, half a second at least."""
    heard = to_16_khz(pcm)
    return np.pad(heard, (0, max(0, SHORTEST - len(heard))))

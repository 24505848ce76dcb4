"""Faults of a recording that need no judge: silence, clipping, late speech."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.voices.reference_audio import SILENCE_PEAK

WINDOW = SAMPLE_RATE // 100
QUIET = 10 ** (-40 / 20)
"""Below the loudest window by this much is no speech yet."""
CLIPPED_AT, CLIPPED_SHARE = 0.999, 1e-3
"""A recording with more than this share of samples at full scale is clipped."""
RUNAWAY = 3.0
"""A take that lasts longer than this many times the median of its prompt has lost its end."""


@dataclass(frozen=True, slots=True)
class SoundFacts:
    """Facts about one recording."""

    seconds: float
    leading_s: float
    """Before speech begins; infinite in a silent one."""
    silent: bool
    clipped: bool


def measure_sound(pcm: NDArray[np.float32]) -> SoundFacts:
    """Measure ``[samples]`` float32 at 24 kHz."""
    seconds, level = len(pcm) / SAMPLE_RATE, np.abs(pcm)
    if not len(pcm) or not np.isfinite(pcm).all() or float(level.max()) <= SILENCE_PEAK:
        return SoundFacts(seconds, inf, silent=True, clipped=False)
    padded = np.pad(pcm.astype(float), (0, -len(pcm) % WINDOW)).reshape(-1, WINDOW)
    power = np.sqrt((padded**2).mean(axis=1))
    first = int(np.argmax(power > QUIET * power.max()))
    clipped = float((level >= CLIPPED_AT).mean()) > CLIPPED_SHARE
    return SoundFacts(seconds, first * WINDOW / SAMPLE_RATE, silent=False, clipped=clipped)

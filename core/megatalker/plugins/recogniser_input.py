"""Audio as recognisers of speech expect it: plug-ins that listen to finished speech prepare it here."""

import numpy as np
import soxr
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE

Samples = NDArray[np.float32]

RATE = 16_000
"""Sampling rate that recognisers and speaker models were trained at."""
MARGIN = RATE // 4
"""Samples before and after the speech, in which models expect silence."""
_DITHER = 2e-3
"""-54 dB of noise: models were trained on recordings, and digital silence disturbs them."""
_LARGEST = 0.6


def to_16_khz(samples: Samples) -> Samples:
    """Resample float32 ``[n]`` at 24 kHz."""
    heard: Samples = soxr.resample(samples, SAMPLE_RATE, RATE)
    return heard


def as_recorded(samples: Samples) -> NDArray[np.int16]:
    """Make speech resemble a recording: of the usual loudness, with noise that is always the same, and margins.

    Args:
        samples: float32 ``[n]`` at 24 kHz, full scale 1.

    Returns:
        Little-endian int16 at 16 kHz, with :data:`MARGIN` samples on either side.
    """
    heard = to_16_khz(samples)
    padded = np.pad(heard * (_LARGEST / max(1e-3, float(np.abs(heard).max()))), MARGIN)
    noisy = padded + _DITHER * np.random.default_rng(0).standard_normal(len(padded))
    return (noisy.clip(-1, 1) * 32767).astype("<i2")

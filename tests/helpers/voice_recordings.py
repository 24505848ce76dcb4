"""Recordings that are accepted as a voice."""

import io

import numpy as np
import soundfile
from numpy.typing import NDArray

Samples = NDArray[np.float32]
WORDS = "These are the words that are said here."


def speech(seconds: float = 3.0, pitch: float = 120.0, rate: int = 24_000) -> Samples:
    """Syllables with the levels of a voice: bursts of a tone that rises and falls, with breath between them."""
    time = np.arange(round(seconds * rate)) / rate
    syllables = np.clip(np.sin(2 * np.pi * 2.5 * time) + 0.5, 0, 1)
    breath = np.random.default_rng(1).normal(size=time.size) * 1e-3
    return (0.4 * syllables * np.sin(2 * np.pi * pitch * time) + breath).astype(np.float32)


def wav(samples: Samples, rate: int = 24_000, subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype=subtype)
    return file.getvalue()

"""How alike two voices are, by a measure that no training uses: median pitch and mean cepstra of voiced speech."""

from dataclasses import dataclass

import numpy as np
import torch
from librosa.filters import mel
from numpy.typing import NDArray
from scipy.fft import dct

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker_demo_voice.pitch import STEP, VOICED, WINDOW, pitches

_BANDS, _HIGHEST_HZ = 40, 6_000
_FLOOR = 1e-3
"""Relative to the loudest band of a window."""
_SEMITONES, _CEPSTRA = 0.55, (0.8, 0.5, 0.6, 0.45, 0.3, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2, 0.2)
"""How far prints of one voice are apart, each way, when it says different sentences: measured, and rounded up."""


@dataclass(frozen=True, slots=True)
class VoicePrint:
    """Properties of some seconds of speech that belong to the voice and not to the words."""

    semitones: float
    """Median pitch, above 1 Hz."""
    cepstra: NDArray[np.float64]
    """``[12]``: the spectral envelope, where the formants are; loudness left out."""

    @classmethod
    def of(cls, samples: NDArray[np.float32]) -> "VoicePrint":
        """Measure ``[samples]`` at 24 kHz.

        Raises:
            ValueError: nothing in them is voiced.
        """
        wave = torch.from_numpy(samples)
        hertz, clear = pitches(wave)
        voiced = (clear >= VOICED).numpy()
        if not voiced.any():
            raise ValueError("there is no voiced speech to take a voice print of")
        windows = wave.unfold(0, WINDOW, STEP).numpy()[voiced] * np.hanning(WINDOW)
        filters = mel(sr=SAMPLE_RATE, n_fft=WINDOW, n_mels=_BANDS, fmax=_HIGHEST_HZ, norm=None)
        bands = np.abs(np.fft.rfft(windows)) @ filters.T
        bands /= bands.max(1, keepdims=True)
        cepstra = dct(np.log(bands.clip(min=_FLOOR)), norm="ortho")[:, 1 : len(_CEPSTRA) + 1]
        return cls(float(12 * np.log2(np.median(hertz.numpy()[voiced]))), cepstra.mean(0))

    def unlike(self, other: "VoicePrint") -> float:
        """0 for the same print, about 1 for one voice that says different things, more for different voices."""
        pitch = (self.semitones - other.semitones) / _SEMITONES
        envelope = (self.cepstra - other.cepstra) / _CEPSTRA
        return float(np.sqrt(np.mean([pitch**2, *envelope**2])))

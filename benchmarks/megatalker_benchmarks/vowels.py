"""A synthetic voice of vowels: a glottal tone through formants, which Silero takes for speech."""

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
SYLLABLE_S, REST_S = 0.2, 0.03
FORMANTS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
}


def utterance(vowels: str, pitch: float) -> NDArray[np.int16]:
    """Return ``[samples]`` at 16 kHz: one syllable for each letter, at about ``pitch`` Hz."""
    rng = np.random.default_rng(0)
    time = np.arange(int(SYLLABLE_S * RATE)) / RATE
    rise_and_fall = np.minimum(1, np.minimum(time / 0.03, (time[-1] - time) / 0.04 + 0.3))
    rest = np.zeros(int(REST_S * RATE))
    melody = pitch * (1 + 0.06 * np.sin(2 * np.pi * 2.5 * time))
    phase = 2 * np.pi * np.cumsum(melody) / RATE
    parts = []
    for vowel in vowels:
        tone = sum(
            _loudness(harmonic * pitch, FORMANTS[vowel]) * np.sin(harmonic * phase)
            for harmonic in range(1, int(3600 / pitch))
        )
        tone = tone / tone.std() + 0.02 * rng.standard_normal(len(time))
        parts += [tone * rise_and_fall, rest]
    voice = np.concatenate(parts)
    samples: NDArray[np.int16] = (voice / np.abs(voice).max() * 0.6 * 32767).astype(np.int16)
    return samples


def pitch_of(samples: NDArray[np.int16], rate: int) -> float:
    """Return the pitch in Hz of an utterance, with or without silence around it, by autocorrelation."""
    signal = samples.astype(np.float64)
    spectrum = np.abs(np.fft.rfft(signal, 2 * len(signal))) ** 2
    likeness = np.fft.irfft(spectrum)
    shortest, longest = int(rate / 300), int(rate / 80)
    return float(rate / (shortest + int(np.argmax(likeness[shortest:longest]))))


def _loudness(frequency: float, formants: tuple[int, int, int]) -> float:
    return sum(
        weight / (1 + ((frequency - centre) / (60 + 0.04 * centre)) ** 2)
        for centre, weight in zip(formants, (1.0, 0.6, 0.3), strict=True)
    )

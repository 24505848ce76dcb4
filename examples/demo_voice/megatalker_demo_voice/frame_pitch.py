"""Moves the pitch of speech onto the grid of codec frames: a whole number of periods in each.

A waveform that begins anew with each frame is coded without its phase. Otherwise a codec of 12.5 frames a second has
to keep the phase of every period in its codes, and a small one whispers instead. Periods are moved by pitch-synchronous
overlap-add (Moulines and Charpentier, 1990), which leaves formants and durations as they are.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

Wave = NDArray[np.float32]

_SMOOTH = 480
"""Samples: how suddenly voiced speech may begin."""
_REPEATS = 0.5
"""How much like the period before it voiced speech is, 1 being exactly."""
_FAINT = 1e-5
"""Mean square below which nothing counts as voiced."""


def move_to_frames(samples: Wave, rate: int, frame: int, lowest_hz: float, highest_hz: float) -> Wave:
    """Change the pitch of each frame to the nearest that fits.

    Args:
        samples: ``[n]`` float32 of unit full scale, whole frames.
        rate: samples a second.
        frame: samples of a frame.
        lowest_hz: the speaker's lowest pitch.
        highest_hz: the highest, less than an octave above: what lies between is the fundamental.

    Returns:
        ``[n]``; unvoiced sounds are as they were.
    """
    fundamental = _between(samples, rate, lowest_hz, highest_hz)
    phase = np.unwrap(np.angle(fundamental)) / (2 * np.pi)
    hertz = (np.gradient(phase) * rate).clip(lowest_hz, highest_hz)
    voiced = _voiced(samples, np.rint(rate / _smooth(hertz)).astype(int))
    if not voiced.any():
        return samples
    power = np.abs(fundamental) ** 2
    weight = (power * voiced).reshape(-1, frame)
    total = weight.sum(1)
    heard = total > 0
    pitch = (weight * hertz.reshape(-1, frame)).sum(1)[heard] / total[heard]
    pitch = np.interp(np.arange(len(total)), np.flatnonzero(heard), pitch)
    marks = _marks(samples, phase, power * voiced)
    moved = _overlap_add(samples, marks, _targets(np.rint(pitch * frame / rate).astype(int), frame))
    mixed: Wave = (voiced * moved + (1 - voiced) * samples).astype(np.float32)
    return mixed


def _between(samples: Wave, rate: int, lowest_hz: float, highest_hz: float) -> NDArray[np.complex128]:
    """The analytic signal of a band with soft edges."""
    spectrum = np.fft.fft(samples)
    hertz = np.fft.fftfreq(len(samples), 1 / rate)
    edge = 0.1 * lowest_hz
    rising, falling = ((hertz - lowest_hz) / edge + 0.5).clip(0, 1), ((highest_hz - hertz) / edge + 0.5).clip(0, 1)
    return np.fft.ifft(2 * spectrum * rising * falling)


def _voiced(samples: Wave, periods: NDArray[np.int64]) -> Wave:
    """``[n]``: 1 where the waveform repeats itself, 0 where it does not, and something between at the edges."""
    before = samples[(np.arange(len(samples)) - periods).clip(0)]
    around = _smooth(samples**2)
    alike = _smooth(samples * before) > _REPEATS * np.sqrt(np.abs(around * _smooth(before**2)))
    return _smooth((alike & (around > _FAINT)).astype(np.float32))


def _smooth(values: Wave) -> Wave:
    smooth: Wave = uniform_filter1d(values, _SMOOTH, mode="constant")
    return smooth


def _marks(samples: Wave, phase: NDArray[np.float64], weight: Wave) -> NDArray[np.int64]:
    """Where periods are loudest, which is the same part of each: cutting halfway between is heard least."""
    loudest = np.angle(np.sum(weight * np.abs(samples) * np.exp(2j * np.pi * phase))) / (2 * np.pi)
    steady = np.maximum.accumulate(phase) - loudest
    whole = np.arange(np.ceil(steady[0]), np.floor(steady[-1]) + 1)
    return np.searchsorted(steady, whole)


def _targets(periods: NDArray[np.int64], frame: int) -> NDArray[np.int64]:
    return np.concatenate([k * frame + np.rint(np.arange(n) * frame / n).astype(int) for k, n in enumerate(periods)])


def _overlap_add(samples: Wave, marks: NDArray[np.int64], targets: NDArray[np.int64]) -> Wave:
    """Put the period around the nearest mark at each target."""
    middle = (marks[1:] + marks[:-1]) / 2
    nearest = np.searchsorted(middle, targets)
    widths = np.maximum(np.diff(marks, append=marks[-1] + 1), np.diff(marks, prepend=marks[0] - 1))
    margin = 4096
    padded, out = np.pad(samples, margin), np.zeros(len(samples) + 2 * margin, np.float32)
    weight = np.zeros_like(out)
    for target, index in zip(targets + margin, nearest, strict=True):
        half, source = min(int(widths[index]), margin), marks[index] + margin
        window = np.hanning(2 * half + 1).astype(np.float32)
        out[target - half : target + half + 1] += window * padded[source - half : source + half + 1]
        weight[target - half : target + half + 1] += window
    added: Wave = (out / weight.clip(min=0.3))[margin:-margin]
    return added

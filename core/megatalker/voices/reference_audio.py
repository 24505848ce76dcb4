"""Recordings of voices to clone: read, checked, as mono 24 kHz."""

import logging
import math
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.voices.audio_file import check_channels, check_length, check_rate, decode_audio
from megatalker.voices.reference_faults import source_faults

__all__ = ["ReferenceSource", "Samples", "mix_down", "read_reference", "read_unmixed", "to_24_khz"]

logger = logging.getLogger(__name__)

Samples = NDArray[np.float32]
ReferenceSource = str | Path | bytes | tuple[NDArray[np.generic], int]

SILENCE_PEAK = 1e-3
"""A recording that never exceeds this (-60 dB of full scale) is taken for silence."""
LOUDEST_PEAK = 4.0
"""Floating-point recordings may exceed full scale a little; beyond this they are in other units."""
CANCELLED = 0.45
"""The mean of the channels is taken unless it is quieter than this part of the loudest channel. The mean of two unlike
channels keeps 0.71 of their level, of a channel and a silent one 0.5, of a channel and its inverse nothing."""


def read_reference(source: ReferenceSource) -> Samples:
    """Read a recording of a voice to clone: float32 ``[samples]``, mono, 24 kHz.

    A recording that will make a poor voice (clipped, or sampled below 16 kHz) is taken, and the log warns.

    Args:
        source: an audio file, its content, or ``([samples] or [samples, channels], sampling rate)``; integers are taken
            as full-scale PCM. Channels are averaged; where they cancel each other, the loudest is taken.

    Raises:
        InvalidRequestError: no such file, not audio, damaged, shorter than 0.5 s, longer than 60 s, silent, without
            channels or with more than 16, or with samples that are not finite or far beyond full scale.
        UnsupportedError: a format that PyAV reads, and PyAV is not installed.
    """
    audio, rate = read_unmixed(source)
    mono = mix_down(audio)
    for fault in source_faults(mono, rate):
        logger.warning("%s", fault)
    return to_24_khz(mono, rate)


def read_unmixed(source: ReferenceSource) -> tuple[Samples, int]:
    """Read a recording as it is: float32 ``[samples, channels]``, and its rate; raises as :func:`read_reference`."""
    audio, rate = _from_array(*source) if isinstance(source, tuple) else decode_audio(source)
    if not np.isfinite(audio).all():
        raise InvalidRequestError("the reference audio holds samples that are not finite; expected values from -1 to 1")
    if (largest := float(np.abs(audio).max())) > LOUDEST_PEAK:
        raise InvalidRequestError(
            f"the reference audio reaches {largest:.6g}, expected values from -1 to 1; divide by the full scale"
        )
    return audio, rate


def mix_down(audio: Samples) -> Samples:
    """Mix ``[samples, channels]`` to ``[samples]``. Raises ``InvalidRequestError`` where all channels are silent."""
    mono: Samples = audio.mean(axis=1)
    if audio.shape[1] > 1:
        power = np.square(audio, dtype=np.float64).mean(axis=0)
        loudest = int(power.argmax())
        if np.square(mono, dtype=np.float64).mean() < CANCELLED**2 * power[loudest]:
            mono = audio[:, loudest].copy()
    peak = float(np.abs(mono - mono.mean()).max())  # a constant is no sound
    if peak < SILENCE_PEAK:
        raise InvalidRequestError(
            f"the reference audio is silent (peak {peak:.1g} of full scale, expected at least {SILENCE_PEAK}); "
            "pass a recording of a voice"
        )
    return mono


def to_24_khz(mono: Samples, rate: int) -> Samples:
    """Resample ``[samples]`` from ``rate`` Hz, to the samples that the official package has, and as many of them.

    librosa, which it resamples with, rounds the length up and fills what soxr leaves out with zeros. Its product is a
    floating-point number, which can lie above a whole one: 22,197 samples at 44.1 kHz become 12,081, not 12,080.
    """
    if rate == SAMPLE_RATE:
        return mono
    official = np.zeros(math.ceil(len(mono) * (SAMPLE_RATE / rate)), np.float32)
    resampled: Samples = soxr.resample(mono, rate, SAMPLE_RATE)[: len(official)]
    official[: len(resampled)] = resampled
    return official


def _from_array(audio: NDArray[np.generic], rate: int) -> tuple[Samples, int]:
    check_rate(rate)
    audio = np.asarray(audio)
    if audio.ndim not in (1, 2) or audio.dtype.kind not in "fiu":
        raise InvalidRequestError(
            f"the reference audio is an array of shape {audio.shape} and type {audio.dtype}, "
            "expected numbers of shape [samples] or [samples, channels]"
        )
    check_length(audio.shape[0], rate)
    samples = _to_float(audio[:, None] if audio.ndim == 1 else audio)
    check_channels(samples.shape[1])
    return samples, rate


def _to_float(audio: NDArray[np.generic]) -> Samples:
    if audio.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused as such
            return audio.astype(np.float32)
    limits = np.iinfo(audio.dtype.str)
    middle = (int(limits.max) + int(limits.min) + 1) // 2
    return ((audio.astype(np.float64) - middle) / (int(limits.max) + 1 - middle)).astype(np.float32)

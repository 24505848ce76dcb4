"""Recordings of voices to clone: read, checked, as mono 24 kHz."""

import io
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError

__all__ = ["check_rate", "decode_audio", "read_reference"]

Samples = NDArray[np.float32]

MIN_REFERENCE_SECONDS = 0.5
MAX_REFERENCE_SECONDS = 60.0
MIN_RATE, MAX_RATE = 4_000, 384_000
SILENCE_PEAK = 1e-3
"""A recording that never exceeds this (-60 dB of full scale) is taken for silence."""
LOUDEST_PEAK = 4.0
"""Floating-point recordings may exceed full scale a little; beyond this they are in other units."""


def read_reference(source: str | Path | bytes | tuple[NDArray[np.generic], int]) -> Samples:
    """A recording of a voice to clone: float32 ``[samples]``, mono, 24 kHz.

    Args:
        source: an audio file, its content, or ``([samples] or [samples, channels], sampling rate)``; integers are taken
            as full-scale PCM. Channels are averaged.

    Raises:
        InvalidRequestError: no such file, not audio, shorter than 0.5 s, longer than 60 s, silent, without channels, or
            with samples that are not finite or far beyond full scale.
    """
    audio, rate = _from_array(*source) if isinstance(source, tuple) else decode_audio(source)
    if not audio.shape[1]:
        raise InvalidRequestError("the reference audio has no channels, expected at least one")
    if not np.isfinite(audio).all():
        raise InvalidRequestError("the reference audio holds samples that are not finite; expected values from -1 to 1")
    if (largest := float(np.abs(audio).max())) > LOUDEST_PEAK:
        raise InvalidRequestError(
            f"the reference audio reaches {largest:.6g}, expected values from -1 to 1; divide by the full scale"
        )
    mono = audio.mean(axis=1)
    peak = float(np.abs(mono).max())
    if peak < SILENCE_PEAK:
        raise InvalidRequestError(
            f"the reference audio is silent (peak {peak:.1g} of full scale, expected at least {SILENCE_PEAK}); "
            "pass a recording of a voice"
        )
    resampled: Samples = soxr.resample(mono, rate, SAMPLE_RATE)
    return resampled


def decode_audio(source: str | Path | bytes) -> tuple[Samples, int]:
    """A recording as it is, float32 ``[samples, channels]``, and its rate; raises as :func:`read_reference`."""
    name = "the reference audio" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise InvalidRequestError(f"no such audio file: {name}; expected the path of a local file")
    try:
        with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as file:
            _check_length(file.frames, file.samplerate)
            return file.read(dtype="float32", always_2d=True), file.samplerate
    except (soundfile.LibsndfileError, TypeError) as error:
        raise InvalidRequestError(
            f"{name} is not audio that can be read ({error}); expected WAV, FLAC, OGG or MP3"
        ) from error


def _from_array(audio: NDArray[np.generic], rate: int) -> tuple[Samples, int]:
    check_rate(rate)
    audio = np.asarray(audio)
    if audio.ndim not in (1, 2) or audio.dtype.kind not in "fiu":
        raise InvalidRequestError(
            f"the reference audio is an array of shape {audio.shape} and type {audio.dtype}, "
            "expected numbers of shape [samples] or [samples, channels]"
        )
    _check_length(audio.shape[0], rate)
    samples = _to_float(audio)
    return samples[:, None] if samples.ndim == 1 else samples, rate


def _to_float(audio: NDArray[np.generic]) -> Samples:
    if audio.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused as such
            return audio.astype(np.float32)
    limits = np.iinfo(audio.dtype.str)
    middle = (int(limits.max) + int(limits.min) + 1) // 2
    return ((audio.astype(np.float64) - middle) / (int(limits.max) + 1 - middle)).astype(np.float32)


def _check_length(samples: int, rate: int) -> None:
    check_rate(rate)
    seconds = samples / rate
    if not MIN_REFERENCE_SECONDS <= seconds <= MAX_REFERENCE_SECONDS:
        remedy = "record more" if seconds < MIN_REFERENCE_SECONDS else "cut it"
        raise InvalidRequestError(
            f"the reference audio lasts {seconds:.2f} s, expected {MIN_REFERENCE_SECONDS:g} to "
            f"{MAX_REFERENCE_SECONDS:g} s; {remedy}, 3 to 15 s of clear speech is best"
        )


def check_rate(rate: object) -> None:
    """Refuse a sampling rate that is not an integer from 4000 to 384000 Hz, with ``InvalidRequestError``."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidRequestError(
            f"the sampling rate is {rate!r}, expected an integer from {MIN_RATE} to {MAX_RATE} Hz"
        )

"""Whether a recording and its transcript make a good voice, before anybody hears a bad one."""

import unicodedata

import numpy as np
from numpy.typing import NDArray

from megatalker.errors import InvalidRequestError
from megatalker.voices.reference_audio import decode_audio, read_reference

Samples = NDArray[np.float32]

MIN_RATE = 16_000
MIN_SPEECH_S = 1.0
MIN_SPEECH_SHARE = 0.3
"""Of the recording."""
FRAME_S = 0.02
QUIET = 0.01
"""A frame below this part of the loudest ones (-40 dB) is no speech."""
FLAT_SAMPLES = 4
"""So many samples in a row at full deflection are a wave whose top was cut off; waves that were not have fewer."""
FLAT_TOLERANCE = 4e-5
"""Of the peak: a step of 16-bit audio, which reaches further down than up."""
MAX_CLIPPED_SHARE = 1e-3
PACE = (3.0, 40.0)
"""Letters of a second of speech, from slow to fast; a sign of a wide script counts as three."""


def read_good_reference(content: bytes, transcript: str | None, max_seconds: float) -> Samples:
    """A recording for a voice that is to be kept: float32 ``[samples]``, mono, 24 kHz.

    Args:
        content: of an audio file.
        transcript: what is said in it, or ``None`` for a voice that needs none.
        max_seconds: of the recording.

    Raises:
        InvalidRequestError: as :func:`~megatalker.voices.read_reference`; or the recording is too long, was sampled
            below 16 kHz, is mostly silence, is clipped, or cannot be what the transcript says.
    """
    samples = read_reference(content)
    audio, rate = decode_audio(content)
    mono: Samples = audio.mean(axis=1)
    seconds = len(mono) / rate
    if seconds > max_seconds:
        raise InvalidRequestError(
            f"the reference audio lasts {seconds:.2f} s, expected at most {max_seconds:g} s; cut it, 3 to 15 s of "
            "clear speech is best"
        )
    if rate < MIN_RATE:
        raise InvalidRequestError(
            f"the reference audio is sampled at {rate} Hz, expected at least {MIN_RATE}: what a telephone leaves "
            "out of a voice is missing in its clone; record it anew"
        )
    _check_clipping(mono)
    speech_s = _speech(mono, rate)
    if speech_s < MIN_SPEECH_S or speech_s < MIN_SPEECH_SHARE * seconds:
        raise InvalidRequestError(
            f"the reference audio holds {speech_s:.1f} s of speech in {seconds:.1f} s, expected at least "
            f"{MIN_SPEECH_S:g} s and {MIN_SPEECH_SHARE:.0%} of it; cut the silence, or record more"
        )
    if transcript is not None:
        _check_transcript(transcript, speech_s)
    return samples


def _check_clipping(mono: Samples) -> None:
    deflection = np.abs(mono)
    flat = deflection >= deflection.max() * (1 - FLAT_TOLERANCE)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flat, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    share = runs[runs >= FLAT_SAMPLES].sum() / len(mono)
    if share > MAX_CLIPPED_SHARE:
        raise InvalidRequestError(
            f"the reference audio is clipped ({share:.1%} of its samples stand at full deflection, expected at most "
            f"{MAX_CLIPPED_SHARE:.1%}); record it at a lower level"
        )


def _speech(mono: Samples, rate: int) -> float:
    """Seconds that are not silence."""
    size = max(1, round(rate * FRAME_S))
    frames = mono[: len(mono) // size * size].reshape(-1, size)
    levels = np.sqrt((frames.astype(np.float64) ** 2).mean(axis=1))
    return float((levels > QUIET * np.quantile(levels, 0.95)).sum() * FRAME_S)


def _check_transcript(transcript: str, speech_s: float) -> None:
    letters = [sign for sign in transcript if sign.isalnum()]
    if not letters:
        raise InvalidRequestError(
            f"the transcript is {transcript[:40]!r}, expected every word that is said in the recording"
        )
    pace = sum(3 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in letters) / speech_s
    slowest, fastest = PACE
    if not slowest <= pace <= fastest:
        raise InvalidRequestError(
            f"the transcript has {len(letters)} letters for {speech_s:.1f} s of speech, {pace:.1f} a second, expected "
            f"{slowest:g} to {fastest:g}; give every word that is said in the recording, and no other"
        )

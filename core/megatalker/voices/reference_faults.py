"""Faults of a recording or its transcript, in sentences. One list serves the server, the command line and Python.

The command line and Python take such a recording and warn. For severe faults a voice that is to be kept is refused.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.voices.reference_edges import SpeechSpan

__all__ = ["ReferenceFault", "source_faults", "speech_faults"]

Samples = NDArray[np.float32]

MIN_RATE = 16_000
MIN_SPEECH_S = 1.0
MIN_SPEECH_SHARE = 0.3
"""Part of the recording between the beginning of the speech and its end."""
GOOD_SPEECH_S = 3.0
LONGEST_PAUSE_S = 1.5
QUIETEST_LEVEL = 3e-3
"""Root mean square of the louder parts of the speech (-50 dB of full scale)."""
LOUDEST_NOISE = 0.1
"""Noise, as a part of the level of the speech (-20 dB)."""
FLAT_SAMPLES = 4
"""A wave whose top was cut off has at least this many samples in a row at full deflection; others have fewer."""
FLAT_TOLERANCE = 4e-5
"""Part of the peak: a step of 16-bit audio, which reaches further down than up."""
MAX_CLIPPED_SHARE = 1e-3
PACE = (3.0, 40.0)
"""Letters of a second of speech, from slow to fast; a letter of a wide script counts as three."""


@dataclass(frozen=True, slots=True)
class ReferenceFault:
    """One fault of a recording; its text names the finding, the expectation and the remedy."""

    message: str
    severe: bool = True
    """A voice that is to be kept is refused for it."""

    def __str__(self) -> str:
        return self.message


def source_faults(mono: Samples, rate: int) -> Iterator[ReferenceFault]:
    """Faults of ``[samples]`` as they were recorded: resampling hides them."""
    if rate < MIN_RATE:
        yield ReferenceFault(
            f"the reference audio is sampled at {rate} Hz, expected at least {MIN_RATE}: what a telephone leaves "
            "out of a voice is missing in its clone; record it anew"
        )
    deflection = np.abs(mono)
    flat = deflection >= deflection.max() * (1 - FLAT_TOLERANCE)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flat, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    share = runs[runs >= FLAT_SAMPLES].sum() / len(mono)
    if share > MAX_CLIPPED_SHARE:
        yield ReferenceFault(
            f"the reference audio is clipped ({share:.1%} of its samples stand at full deflection, expected at most "
            f"{MAX_CLIPPED_SHARE:.1%}); record it at a lower level"
        )


def speech_faults(span: SpeechSpan, seconds: float, transcript: str | None) -> Iterator[ReferenceFault]:
    """Faults of the speech in a recording.

    Args:
        span: where the speech is.
        seconds: of the recording, without the silence around the speech.
        transcript: what is said in it, or ``None`` for a voice that needs none.
    """
    if span.seconds < MIN_SPEECH_S or span.seconds < MIN_SPEECH_SHARE * seconds:
        yield ReferenceFault(
            f"the reference audio holds {span.seconds:.1f} s of speech in {seconds:.1f} s, expected at least "
            f"{MIN_SPEECH_S:g} s and {MIN_SPEECH_SHARE:.0%} of it; cut the silence, or record more"
        )
    elif span.seconds < GOOD_SPEECH_S and seconds < GOOD_SPEECH_S:
        yield ReferenceFault(
            f"the reference audio holds {span.seconds:.1f} s of speech, and a voice is cloned better from "
            f"{GOOD_SPEECH_S:g} to 15 s",
            severe=False,
        )
    if transcript is not None:
        yield from _transcript_faults(transcript, span.seconds)
    if span.longest_pause_s > LONGEST_PAUSE_S:
        yield ReferenceFault(
            f"the reference audio has a pause of {span.longest_pause_s:.1f} s within the speech, expected at most "
            f"{LONGEST_PAUSE_S:g} s; cut it",
            severe=False,
        )
    if span.level < QUIETEST_LEVEL:
        yield ReferenceFault(
            f"the reference audio is quiet (speech at {_decibels(span.level):.0f} dB of full scale, expected at least "
            f"{_decibels(QUIETEST_LEVEL):.0f}); record it closer to the microphone, or at a higher level",
            severe=False,
        )
    if span.noise > LOUDEST_NOISE * span.level:
        yield ReferenceFault(
            f"the reference audio is noisy (its quietest parts are {_decibels(span.level / span.noise):.0f} dB below "
            f"the speech, expected at least {_decibels(1 / LOUDEST_NOISE):.0f}); record it where it is quiet",
            severe=False,
        )


def _transcript_faults(transcript: str, speech_s: float) -> Iterator[ReferenceFault]:
    letters = [sign for sign in transcript if sign.isalnum()]
    if not letters:
        yield ReferenceFault(
            f"the transcript is {transcript[:40]!r}, expected every word that is said in the recording"
        )
        return
    if not speech_s:
        return  # which is a fault already
    pace = sum(3 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in letters) / speech_s
    slowest, fastest = PACE
    if not slowest <= pace <= fastest:
        yield ReferenceFault(
            f"the transcript has {len(letters)} letters for {speech_s:.1f} s of speech, {pace:.1f} a second, expected "
            f"{slowest:g} to {fastest:g}; give every word that is said in the recording, and no other"
        )


def _decibels(ratio: float) -> float:
    return 20 * float(np.log10(max(ratio, 1e-12)))

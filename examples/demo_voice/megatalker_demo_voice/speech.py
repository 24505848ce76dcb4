"""Turns text into training speech: 24 kHz, cut to whole frames, with the phonemes of each frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import soxr
from numpy.typing import NDArray

from megatalker_demo_voice.espeak import RATE, Espeak
from megatalker_demo_voice.frame_pitch import move_to_frames
from megatalker_demo_voice.speakers import EspeakSpeaker

_What = TypeVar("_What")
SAMPLE_RATE = 24_000
FRAME = 1_920
LEAD_FRAMES = 2
"""Silence before speech: two frames of text are known before the first sound must be right."""
_TAIL = int(0.2 * SAMPLE_RATE)
_LOUDEST = 32_767
_SILENT = 60
"""Samples below this are silence."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One spoken text."""

    text: str
    samples: NDArray[np.int16]
    """``[frames * 1920]`` at 24 kHz."""
    phonemes: tuple[tuple[int, str], ...]
    """First sample of each phoneme, at 24 kHz in ``samples``; a phoneme lasts until the next one."""
    words: tuple[tuple[int, int], ...]
    """First sample of each word, likewise, and where the word begins in ``text``."""

    @property
    def frames(self) -> int:
        return len(self.samples) // FRAME


def speak(
    espeak: Espeak, text: str, speaker: EspeakSpeaker, *, rate: int | None = None, pitch: int | None = None
) -> Clip | None:
    """Say ``text``; ``None`` when espeak-ng finds nothing to say in it."""
    said = espeak.say(text, speaker, rate=rate, pitch=pitch)
    if len(said.samples) < RATE // 50:
        return None
    samples = soxr.resample(said.samples, RATE, SAMPLE_RATE) * np.float32(speaker.gain)
    loud = np.flatnonzero(np.abs(samples) > _SILENT)
    if not len(loud):
        return None
    begin, end = int(loud[0]), int(loud[-1]) + 1
    lead = LEAD_FRAMES * FRAME
    framed = np.zeros(-(-(lead + end - begin + _TAIL) // FRAME) * FRAME, np.float32)
    framed[lead : lead + end - begin] = samples[begin:end] / _LOUDEST
    moved = move_to_frames(framed, SAMPLE_RATE, FRAME, *speaker.hertz) * _LOUDEST
    end += lead - begin
    phonemes = (*_moved(said.phonemes, lead - begin, end), (end, "_"))
    whole = np.clip(np.rint(moved), -_LOUDEST, _LOUDEST).astype(np.int16)
    return Clip(text, whole, phonemes, _moved(said.words, lead - begin, end))


def _moved(events: Sequence[tuple[int, _What]], offset: int, end: int) -> tuple[tuple[int, _What], ...]:
    """Events at :data:`RATE` -> events at 24 kHz, ``offset`` samples later, up to ``end``."""
    moved = [(round(start * SAMPLE_RATE / RATE) + offset, what) for start, what in events]
    return tuple((max(0, start), what) for start, what in moved if start < end)

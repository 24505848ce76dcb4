"""Edges of the speech in a recording, and the cut of the silence around it.

An in-context voice puts the whole recording into the prompt. Where that ends in silence, the talker takes speech to be
over, and ends the new speech early, too. A sentence takes ``demo-base`` 2.8 s with the speaker embedding alone, and
with 6 s of reference in context (means of three seeds):

=====================  =====  =====  =====  =====  =====  =====  =====
silence at the end, s      0   0.10   0.15   0.30   0.50   1.00   3.00
first voice, s          3.04   2.91   2.88   2.80   2.64   2.32   2.13
second voice, s         2.99   2.88   2.80   2.56   2.51   2.29   2.08
=====================  =====  =====  =====  =====  =====  =====  =====

Silence at the beginning changes little up to 0.5 s, and lengthens the speech beyond.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE

__all__ = ["FRAME_S", "KEPT_SILENCE_S", "SpeechSpan", "find_speech", "trim_edges"]

Samples = NDArray[np.float32]
Levels = NDArray[np.float64]

KEPT_SILENCE_S = 0.15
"""Seconds of silence that stay before and after the speech; with it both voices above are nearest to 2.8 s."""
FRAME_S = 0.02
_FRAME = round(SAMPLE_RATE * FRAME_S)
_LOUD_FRAMES = 20
"""The level of speech is one that this many frames exceed: more than a click has, fewer than the shortest word."""
_INAUDIBLE = 1e-3
"""Frames below this part of the level of speech (-60 dB) are digital silence, and say nothing about noise."""
_QUIET = 0.01
"""Frames below this part of the level of speech (-40 dB) are silence in any recording."""
_FLOOR_FRAMES = 10
"""Noise is the quietest 0.2 s of a recording; one quiet moment of it does not stand for all."""
_NOISE_MARGIN = 2.0
"""Frames below this multiple of the noise are silence, too."""
_LOUDEST_NOISE = 0.15
"""Frames above this part of the level of speech (-16 dB) are not: without pauses, the quietest 0.2 s are speech."""
_EDGE_FRAMES = 50
_STEADY = 1.6
"""A second at an edge whose frames differ by less than this factor (4 dB) is noise, however loud: speech is not steady.
White noise stays within 1.2."""
_STEADY_MARGIN = 1.3
"""Frames below this multiple of steady noise are silence."""
_LOUDEST_STEADY = 0.5
"""Frames above this part of the level of speech (-6 dB) are not."""
_GAP_FRAMES = 15
"""Sounds that are further apart than this (0.3 s) are different ones."""
_CLICK_FRAMES = 3
"""Sounds that never last longer than this (60 ms), at an edge, are clicks of a key or a switch, and no words."""


@dataclass(frozen=True, slots=True)
class SpeechSpan:
    """Speech in a recording at 24 kHz."""

    start: int
    """Its first sample."""
    end: int
    """The sample after its last."""
    seconds: float
    """Seconds of sound, without pauses."""
    longest_pause_s: float
    level: float
    """Root mean square of its louder parts."""
    noise: float
    """Root mean square of the quietest 60 ms that are not digital silence; 0 where there are none."""


def trim_edges(samples: Samples) -> Samples:
    """Cut silence before and after the speech in ``[samples]`` at 24 kHz to at most 0.15 s.

    What is left is a view of the same samples, unchanged.
    """
    span, kept = find_speech(samples), round(KEPT_SILENCE_S * SAMPLE_RATE)
    return samples[max(0, span.start - kept) : span.end + kept]


def find_speech(samples: Samples) -> SpeechSpan:
    """Find the speech in ``[samples]`` at 24 kHz, by levels alone; all of the recording where nothing stands out."""
    levels = _frame_levels(samples)
    if not len(levels):
        return SpeechSpan(0, len(samples), 0.0, 0.0, 0.0, 0.0)
    level = float(np.sort(levels)[::-1][min(_LOUD_FRAMES, len(levels) // 4)])
    audible = levels[levels > _INAUDIBLE * level]
    noise = float(np.sort(audible)[:_CLICK_FRAMES].mean()) if len(audible) else 0.0
    threshold = _threshold(level, audible, digital_silence=len(levels) - len(audible) >= _FLOOR_FRAMES)
    sounds = _sounds(levels > threshold)
    while sounds and sounds[0].longest <= _CLICK_FRAMES:
        sounds.pop(0)
    while sounds and sounds[-1].longest <= _CLICK_FRAMES:
        sounds.pop()
    if not sounds:
        return SpeechSpan(0, len(samples), 0.0, 0.0, level, noise)
    pauses = [after.start - before.end for before, after in pairwise(sounds)]
    return SpeechSpan(
        start=sounds[0].start * _FRAME,
        end=min(sounds[-1].end * _FRAME, len(samples)),
        seconds=sum(sound.frames for sound in sounds) * FRAME_S,
        longest_pause_s=max(pauses, default=0) * FRAME_S,
        level=level,
        noise=noise,
    )


@dataclass(frozen=True, slots=True)
class _Sound:
    """Frames above the threshold, with gaps of at most 0.3 s between them."""

    start: int
    end: int
    frames: int
    longest: int
    """Frames without a gap."""


def _sounds(active: NDArray[np.bool_]) -> list[_Sound]:
    changes = np.flatnonzero(np.diff(np.concatenate(([False], active, [False])).astype(np.int8)))
    found: list[_Sound] = []
    for start, end in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
        length = end - start
        if found and start - found[-1].end <= _GAP_FRAMES:
            last = found.pop()
            found.append(_Sound(last.start, end, last.frames + length, max(last.longest, length)))
        else:
            found.append(_Sound(start, end, length, length))
    return found


def _frame_levels(samples: Samples) -> Levels:
    """Root mean square of each frame without its mean and slope: a constant offset and rumble count as silence."""
    if len(samples) < _FRAME:
        return np.zeros(0)
    frames = np.pad(samples, (0, -len(samples) % _FRAME), mode="edge").astype(np.float64).reshape(-1, _FRAME)
    line = np.linspace(-1.0, 1.0, _FRAME)
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= np.outer(frames @ line / (line @ line), line)
    levels: Levels = np.sqrt(np.square(frames).mean(axis=1))
    return levels


def _threshold(level: float, audible: Levels, *, digital_silence: bool) -> float:
    """Return the level above which a frame is speech. With digital silence, even the quietest audible one may be."""
    found = [_QUIET * level]
    if not digital_silence:
        found.append(min(_NOISE_MARGIN * _quietest(audible), _LOUDEST_NOISE * level))
    for edge in (audible[:_EDGE_FRAMES], audible[-_EDGE_FRAMES:]):
        if len(edge) == _EDGE_FRAMES and edge.max() < _STEADY * edge.min():
            found.append(min(_STEADY_MARGIN * edge.max(), _LOUDEST_STEADY * level))
    return float(max(found))


def _quietest(levels: Levels) -> float:
    if len(levels) < _FLOOR_FRAMES:
        return 0.0
    sums = np.cumsum(np.concatenate(([0.0], levels)))
    return float((sums[_FLOOR_FRAMES:] - sums[:-_FLOOR_FRAMES]).min() / _FLOOR_FRAMES)

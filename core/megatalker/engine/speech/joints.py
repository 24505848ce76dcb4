"""Joints: what markup asks for between two segments of an utterance: silence, marks that are told of, and
another prosody.

A joint is no part of any segment, so that codes are those of the same segments without it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.prompt.markup.prosody import Prosody

__all__ = ["Joint", "SegmentMark", "silence_after", "smooth_beginning"]

EDGE_SAMPLES = SAMPLE_RATE // 500  # not tuned: a fact of hearing
"""2 ms: over this long a wave that is cut off falls to silence, and one that begins rises from it. Without, a listener
hears a click."""

SegmentMark = tuple[str, int]
"""A mark's name, and the samples of its joint before it."""


@dataclass(frozen=True, slots=True)
class Joint:
    """See the module."""

    silence: int = 0
    """Samples."""
    marks: tuple[SegmentMark, ...] = ()
    frame: int = 0
    """Frames of the utterance before it, once they are known."""
    voice: str | None = None
    """The voice that follows where it is another one, for the codec."""
    prosody: Prosody | None = None
    """The prosody of the speech that follows where it is another one."""

    def then(self, other: "Joint") -> "Joint":
        """Return both as one."""
        marks = tuple((name, self.silence + before) for name, before in other.marks)
        prosody = self.prosody if other.prosody is None else other.prosody
        return Joint(self.silence + other.silence, self.marks + marks, prosody=prosody)

    def without(self, silence: int, marks: int) -> "Joint":
        """Return the joint without its first ``silence`` samples and ``marks`` marks, which are handed out already."""
        left = tuple((name, max(0, before - silence)) for name, before in self.marks[marks:])
        return Joint(max(0, self.silence - silence), left, prosody=self.prosody)

    @property
    def has_chunk(self) -> bool:
        """There is something to hand out: a chunk without frames."""
        return bool(self.silence or self.marks or self.prosody is not None)


def silence_after(last: float, samples: int) -> NDArray[np.float32]:
    """Return silence of this length, to which a wave whose last sample was ``last`` falls within its first 2 ms."""
    pcm = np.zeros(samples, np.float32)
    edge = min(EDGE_SAMPLES, samples)
    pcm[:edge] = last * _falling(edge)
    return pcm


def smooth_beginning(pcm: NDArray[np.float32], last: float) -> None:
    """Let a wave begin at the sample before it, in place: its first 2 ms."""
    edge = min(EDGE_SAMPLES, len(pcm))
    falling = _falling(edge)
    pcm[:edge] = pcm[:edge] * (1 - falling) + last * falling


def _falling(samples: int) -> NDArray[np.float32]:
    """Half a cosine from nearly 1 to 0."""
    return (0.5 + 0.5 * np.cos(np.pi * np.arange(1, samples + 1) / max(1, samples))).astype(np.float32)

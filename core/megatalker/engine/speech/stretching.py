"""Speech at another rate and the same pitch, by FFmpeg's ``atempo``; needs the package ``av``."""

from fractions import Fraction

import av
import av.filter
import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE

__all__ = ["FrameClock", "PitchKeepingStretch"]

Samples = NDArray[np.float32]

SLOWEST_STEP = 0.5  # not tuned: a fact of FFmpeg
"""The slowest rate of one ``atempo`` filter."""
FEWEST_SAMPLES = 64  # not tuned: a fact of FFmpeg
"""``atempo`` fails at a frame that would become no sample at all, such as a single one at a high rate."""
TAIL_SAMPLES = 8192  # not tuned: a fact of FFmpeg
"""Silence behind the speech: ``atempo`` leaves out some of what comes last."""


class FrameClock:
    """Frames for FFmpeg, one after another."""

    def __init__(self, rate: int) -> None:
        self._rate, self._samples = rate, 0

    def frame(self, samples: NDArray[np.float32] | NDArray[np.int16], kind: str) -> av.AudioFrame:
        """Return the frame with these samples, ``[n]``, in FFmpeg's format ``kind``."""
        frame = av.AudioFrame.from_ndarray(samples[None], format=kind, layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._samples
        self._samples += len(samples)
        return frame


class PitchKeepingStretch:
    """Stretches one speech at 24 kHz, in pieces. What all :meth:`process` calls and :meth:`finish` return, one after
    another, does not depend on how the speech was cut, and has ``round(samples / rate)`` samples.

    Args:
        rate: from 0.25 to 4; 2 takes half the time.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._clock, self._graph = FrameClock(SAMPLE_RATE), av.filter.Graph()
        nodes = [
            self._graph.add_abuffer(
                sample_rate=SAMPLE_RATE, format="flt", layout="mono", time_base=Fraction(1, SAMPLE_RATE)
            )
        ]
        steps = [rate] if rate >= SLOWEST_STEP else [SLOWEST_STEP, rate / SLOWEST_STEP]
        nodes += [self._graph.add("atempo", str(step)) for step in steps]
        self._graph.link_nodes(*nodes, self._graph.add("abuffersink")).configure()
        self._held = np.empty(0, np.float32)
        self._taken = self._returned = 0

    def process(self, samples: Samples) -> Samples:
        """Return what is ready with these samples, ``[n]`` float32: all but the last few dozen milliseconds."""
        self._taken += len(samples)
        self._held = np.concatenate((self._held, samples))
        if len(self._held) < FEWEST_SAMPLES:
            return self._held[:0]
        self._push()
        return self._count(self._ready())

    def finish(self) -> Samples:
        """Return the rest."""
        self._held = np.concatenate((self._held, np.zeros(TAIL_SAMPLES, np.float32)))
        self._push()
        self._graph.push(None)
        return self._count(self._ready()[: round(self._taken / self._rate) - self._returned])

    def _push(self) -> None:
        self._graph.push(self._clock.frame(self._held, "flt"))
        self._held = self._held[:0]

    def _count(self, samples: Samples) -> Samples:
        self._returned += len(samples)
        return samples

    def _ready(self) -> Samples:
        parts = [np.empty(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):  # no more for now, or at all
                return np.concatenate(parts)
            assert isinstance(frame, av.AudioFrame)
            parts.append(frame.to_ndarray()[0])

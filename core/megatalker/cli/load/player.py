"""One emulated listener: plays from its first chunk on, without a buffer, and notes each silence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE

AUDIBLE = 1e-3
"""Samples below are silence: -60 dBFS."""


@dataclass(slots=True, eq=False)
class Player:
    """What was heard of one utterance. Seconds of one monotonic clock."""

    requested_at: float
    first_at: float | None = None
    """The first chunk came."""
    audible_at: float | None = None
    """The first sample above silence was played."""
    dry_at: float = 0.0
    """All that came will have been played."""
    underruns: int = 0
    worst_gap_s: float = 0.0
    audio_s: float = 0.0
    error: str | None = None
    """The kind of error that ended it."""

    def take(self, pcm: NDArray[np.float32], now: float) -> None:
        """A chunk came."""
        if self.first_at is None:
            self.first_at = self.dry_at = now
        gap = now - self.dry_at
        if gap > 0:
            self.underruns += 1
            self.worst_gap_s = max(self.worst_gap_s, gap)
            self.dry_at = now
        if self.audible_at is None:
            loud = np.abs(pcm) > AUDIBLE
            if loud.any():
                self.audible_at = self.dry_at + int(loud.argmax()) / SAMPLE_RATE
        seconds = len(pcm) / SAMPLE_RATE
        self.dry_at += seconds
        self.audio_s += seconds

"""The playback of an emulated listener: from the first chunk on, without a buffer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.cli.bench.report import percentiles_ms
from megatalker.engine.speech.chunks import PlaybackClock

AUDIBLE = 1e-3
"""Samples below are silence: -60 dBFS."""


@dataclass(slots=True, eq=False)
class Playback:
    """One utterance as a listener hears it. Seconds of one monotonic clock."""

    requested_at: float
    first_at: float | None = None
    """The moment the first chunk came."""
    audible_at: float | None = None
    """The moment the first sample above silence was played."""
    worst_gap_s: float = 0.0
    audio_s: float = 0.0
    error: str | None = None
    """The kind of error that ended it."""
    _clock: PlaybackClock = field(default_factory=PlaybackClock)

    @property
    def underruns(self) -> int:
        """Times that playback ran dry before the next chunk."""
        return self._clock.underruns

    @property
    def first_chunk_s(self) -> float:
        """Seconds from the request to the first chunk, which must have come."""
        assert self.first_at is not None, "nothing was heard"
        return self.first_at - self.requested_at

    def take(self, pcm: NDArray[np.float32], now: float) -> None:
        """Play a chunk after all that came before."""
        if self.audible_at is None:
            loud = np.abs(pcm) > AUDIBLE
            if loud.any():
                self.audible_at = now + max(0.0, self._clock.ahead(now)) + int(loud.argmax()) / SAMPLE_RATE
        self.play(len(pcm) / SAMPLE_RATE, now)

    def play(self, seconds: float, now: float) -> None:
        """Play audio of this duration, whatever it sounds like."""
        if self.first_at is None:
            self.first_at = now
        self.worst_gap_s = max(self.worst_gap_s, -self._clock.ahead(now))
        self._clock.deliver(now, seconds)
        self.audio_s += seconds

    def break_off(self, now: float) -> None:
        """End an utterance that should have gone on: a silence that lasts until now is a gap."""
        if self.first_at is not None:
            self.play(0.0, now)


def summary(playbacks: Sequence[Playback]) -> dict[str, Any]:
    """Summarise many playbacks; milliseconds are ``None`` where nothing was heard."""
    first = [one.first_chunk_s for one in playbacks if one.first_at is not None]
    return {
        "requests": len(playbacks),
        "heard": len(first),
        "first_chunk_ms": percentiles_ms(first),
        "audible_ms": percentiles_ms(
            [one.audible_at - one.requested_at for one in playbacks if one.audible_at is not None]
        ),
        "underruns": sum(one.underruns for one in playbacks),
        "listeners_with_underruns": sum(one.underruns > 0 for one in playbacks),
        "worst_gap_ms": max((one.worst_gap_s for one in playbacks), default=0.0) * 1e3,
        "errors": dict(Counter(one.error for one in playbacks if one.error is not None)),
    }

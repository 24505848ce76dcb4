"""How many frames go into a chunk: one at first, then as many as playback can safely wait for."""

from dataclasses import dataclass

from megatalker.checkpoint.config import FRAME_SECONDS

SLACK_S = 0.02
"""Audio kept in hand for what cannot be foreseen: thread switches, the consumer's own work."""
SMOOTHING = 0.3
"""Weight of the newest frame in the estimate of the time a frame takes."""


@dataclass(slots=True)
class ChunkPolicy:
    """Large chunks cost less, small ones arrive sooner; the playback clock decides between them.

    A stream that is slower than playback is not hurried with ever smaller chunks, which would make it slower still: its
    chunks grow, so that it pauses less often.
    """

    max_frames: int
    target: int = 1
    """Frames of the next chunk."""
    frame_s: float = 0.0
    """Estimated time from one frame of this stream to the next."""
    _last_frame_at: float | None = None

    def note_frame(self, now: float) -> None:
        """The stream got a frame."""
        if self._last_frame_at is not None:
            interval = now - self._last_frame_at
            self.frame_s += SMOOTHING * (interval - self.frame_s) if self.frame_s else interval
        self._last_frame_at = now

    def rest(self) -> None:
        """The stream waits, because it is far ahead: the next interval says nothing about speed."""
        self._last_frame_at = None

    def restart(self) -> None:
        """The stream waits for text and keeps no audio back: what comes then is awaited like a first chunk."""
        self._last_frame_at, self.target = None, 1

    def due(self, pending: int, ahead_s: float) -> bool:
        """Whether to hand out the ``pending`` frames now: enough of them, or playback cannot wait for another."""
        return pending > 0 and (pending >= self.target or (self._keeps_up and ahead_s < self._reserve))

    def note_chunk(self, frames: int, ahead_s: float) -> None:
        """A chunk was handed out, ``ahead_s`` includes it. The next is twice as large if it fits in that time."""
        fits = int((ahead_s - self._reserve) / self.frame_s) if self.frame_s and self._keeps_up else 2 * frames
        self.target = max(1, min(2 * frames, self.max_frames, fits))

    @property
    def _keeps_up(self) -> bool:
        return self.frame_s < FRAME_SECONDS

    @property
    def _reserve(self) -> float:
        return 2 * self.frame_s + SLACK_S

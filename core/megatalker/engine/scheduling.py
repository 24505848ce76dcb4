"""Who goes next, how large a chunk is, how far playback is: arithmetic on times, without a clock of its own.

All times are seconds of one monotonic clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatalker.checkpoint.config import FRAME_SECONDS

UNBATCHED_STEPS = 2
"""Streams decoded per tick by a backend that takes them one after another: few, so that a newcomer waits little."""
SLACK_S = 0.02
"""Audio kept in hand for what cannot be foreseen: thread switches, the consumer's own work."""
SMOOTHING = 0.3
"""Weight of the newest frame in the estimate of the time a frame takes."""


@dataclass(slots=True)
class PlaybackClock:
    """When the audio handed out so far will have been played, by a player that starts with the first chunk and plays
    without pause while it has audio.
    """

    dry_at: float | None = None
    """The moment playback runs out of audio; ``None`` before the first chunk."""
    underruns: int = 0
    _excused: bool = False

    def ahead(self, now: float) -> float:
        """Seconds of audio not yet played; 0 before the first chunk, negative when playback already waits."""
        return 0.0 if self.dry_at is None else self.dry_at - now

    def deliver(self, now: float, seconds: float) -> None:
        """A chunk of this duration was handed out; counts an underrun when playback had run dry before."""
        late = self.dry_at is not None and now > self.dry_at
        if late and not self._excused:
            self.underruns += 1
        self._excused = False
        start = now if self.dry_at is None or late else self.dry_at
        self.dry_at = start + seconds

    def excuse(self) -> None:
        """The stream waits for its caller's text, or for its consumer: running dry before the next chunk is not the
        engine's doing.
        """
        self._excused = True


@dataclass(slots=True)
class ChunkPolicy:
    """How many frames go into a chunk: one at first, then as many as playback can safely wait for.

    Large chunks cost less, small ones arrive sooner; the playback clock decides between them. A stream that is slower
    than playback is not hurried with ever smaller chunks, which would make it slower still: its chunks grow, so that it
    pauses less often.
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stream that could decode a frame now."""

    index: int
    """Position in the caller's list."""
    dry_at: float | None
    """When its playback runs out of audio; ``None`` while it has no audio yet."""
    requested_at: float


def urgency(candidate: Candidate) -> tuple[bool, float]:
    """Sort key: streams without audio first, oldest request first; then the one whose playback runs dry first."""
    if candidate.dry_at is None:
        return False, candidate.requested_at
    return True, candidate.dry_at


def select(candidates: Sequence[Candidate], *, batch: bool, limit: int) -> list[int]:
    """Indices of the streams that decode in this tick, most urgent first.

    Args:
        candidates: streams ready for a frame.
        batch: the backend decodes many streams at about the cost of one; otherwise only the most urgent few go, and
            none with audio in hand beside one that has none yet.
        limit: streams one call of the backend takes.
    """
    ordered = sorted(candidates, key=urgency)
    if not batch:
        starting = [candidate for candidate in ordered if candidate.dry_at is None]
        ordered = (starting or ordered)[:UNBATCHED_STEPS]
    return [candidate.index for candidate in ordered[:limit]]


def prefills_per_tick(*, batch: bool) -> int:
    """Prompts run between two frames of the streams that already speak."""
    return 2 if batch else 1


def chunk_limit(max_chunk_frames: int, max_ahead_s: float | None) -> int:
    """Frames of the largest chunk: half the lead that a stream may have, so that it never runs dry while it waits."""
    if max_ahead_s is None:
        return max_chunk_frames
    return max(1, min(max_chunk_frames, int(max_ahead_s / (2 * FRAME_SECONDS))))


def hold_until(dry_at: float, max_ahead_s: float, chunk_frames: int) -> float:
    """When a stream may begin its next chunk without getting further ahead of playback than ``max_ahead_s``.

    Two frames are always allowed: less cannot be played without gaps.
    """
    ahead = max(max_ahead_s, 2 * FRAME_SECONDS) - chunk_frames * FRAME_SECONDS
    return dry_at - max(ahead, FRAME_SECONDS)

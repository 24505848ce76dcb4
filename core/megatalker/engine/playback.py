"""An emulated player: it starts with the first chunk and plays without pause while it has audio."""

from dataclasses import dataclass


@dataclass(slots=True)
class PlaybackClock:
    """When the audio handed out so far will have been played. All times in seconds of one monotonic clock."""

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

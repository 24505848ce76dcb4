"""Who goes next, how large a chunk is, how far playback is: arithmetic on times, without a clock of its own.

All times are seconds of one monotonic clock.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from megatalker.checkpoint.config import FRAME_SECONDS

UNBATCHED_STEPS = 2
"""Streams decoded per tick by a backend that takes them one after another: few, so that a newcomer waits little."""
MOST_PROMPT_ROWS = 2048
"""Of the prompts of one pass: below it a pass takes a device about the same time whatever its size."""
MOST_CODEC_STREAMS = 64
"""Of one step of the codec: larger ones save no time, and a newcomer waits for their end."""
MOST_CODEC_FRAMES = 128
"""As above, of all its streams."""
SLACK_S = 0.02
"""Audio kept in hand for what cannot be foreseen: thread switches, the consumer's own work."""
MOST_EXPECTED_S = 0.9 * FRAME_SECONDS
"""From one frame to the next, of a stream that has just begun: it is not given up as too slow."""
SMOOTHING = 0.3
"""Weight of the newest in estimates: of the time a frame takes, of the frames a text takes."""
MEMORY_S = 5.0
"""Of the estimate of frames a second."""
NEWCOMERS_SHARE = 0.25
"""Of the time, for newcomers, where the device is too slow for them and for the streams that play."""
PRESSED_PASS_S = 0.02
"""About the longest pass of newcomers that started streams wait for though their playback runs dry."""
LEAST_CREDIT_S = 0.001
"""With which one pass of newcomers may begin."""
MOST_DEBT_S = 0.3
"""After a pass that took longer than its credit: one that compiled should not keep the next waiting for ever."""
REST_S = 0.3
"""A stream that has had no work for so long lends its row: words of one sentence come faster."""


@dataclass(slots=True)
class PlaybackClock:
    """When the audio handed out so far will have been played, by a player that starts with the first chunk and plays
    without pause while it has audio.
    """

    dry_at: float | None = None
    """The moment playback runs out of audio; ``None`` before the first chunk."""
    underruns: int = 0
    excused: bool = False
    """The next chunk may be late: see :meth:`excuse`."""

    def ahead(self, now: float) -> float:
        """Seconds of audio not yet played; 0 before the first chunk, negative when playback already waits."""
        return 0.0 if self.dry_at is None else self.dry_at - now

    def deliver(self, now: float, seconds: float) -> None:
        """A chunk of this duration was handed out; counts an underrun when playback had run dry before."""
        late = self.dry_at is not None and now > self.dry_at
        if late and not self.excused:
            self.underruns += 1
        self.excused = False
        start = now if self.dry_at is None or late else self.dry_at
        self.dry_at = start + seconds

    def excuse(self) -> None:
        """The stream waits for its caller's text, or for its consumer: running dry before the next chunk is not the
        engine's doing.
        """
        self.excused = True


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
        """The stream waits, because it is far ahead or others begin: the next interval says nothing about speed."""
        self._last_frame_at = None

    def restart(self) -> None:
        """The stream waits for text and keeps no audio back: what comes then is awaited like a first chunk."""
        self._last_frame_at, self.target = None, 1

    def due(self, pending: int, ahead_s: float) -> bool:
        """Whether to hand out the ``pending`` frames now: enough of them, or playback cannot wait for another."""
        return pending > 0 and (pending >= self.target or (self._keeps_up and ahead_s < self.reserve_s))

    def note_chunk(self, frames: int, ahead_s: float, engine_frame_s: float) -> None:
        """A chunk was handed out, ``ahead_s`` includes it. The next is twice as large if it fits in that time.

        ``engine_frame_s``: as ``frame_s``, of all streams of the engine, audio included; it counts where it is longer.
        Right after a large chunk a stream's own frames come faster than over a whole round, and of one that has just
        begun nothing is known: many that begin at once have a single frame of audio in hand, and slow each other.
        """
        if not self.frame_s:
            self.frame_s = min(engine_frame_s, MOST_EXPECTED_S)
        slowest_s = max(self.frame_s, engine_frame_s)
        fits = int((ahead_s - self.reserve_s) / slowest_s) if 0 < slowest_s < FRAME_SECONDS else 2 * frames
        self.target = max(1, min(2 * frames, self.max_frames, fits))

    @property
    def _keeps_up(self) -> bool:
        return self.frame_s < FRAME_SECONDS

    @property
    def reserve_s(self) -> float:
        """How long before playback runs dry the next chunk should be begun."""
        return 2 * self.frame_s + SLACK_S


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stream that could decode a frame, or have audio made, now."""

    index: int
    """Position in the caller's list."""
    dry_at: float | None
    """When its playback runs out of audio; ``None`` while it has no audio yet: a newcomer."""
    requested_at: float
    frames: int = 1
    """What it could have made."""


def urgency(candidate: Candidate) -> tuple[bool, float]:
    """Sort key: newcomers first, oldest request first; then the one whose playback runs dry first."""
    if candidate.dry_at is None:
        return False, candidate.requested_at
    return True, candidate.dry_at


def select(candidates: Sequence[Candidate], *, batch: bool, limit: int) -> list[int]:
    """Indices of the streams that decode in this launch, most urgent first; newcomers alone where there are any.

    Args:
        candidates: streams ready for a frame.
        batch: the backend decodes many streams at about the cost of one; otherwise only the most urgent few go.
        limit: streams one call of the backend takes.
    """
    most = limit if batch else min(limit, UNBATCHED_STEPS)
    return [candidate.index for candidate in _most_urgent(candidates)[:most]]


def select_audio(candidates: Sequence[Candidate], *, limit: int) -> list[int]:
    """As :func:`select`, for one step of the codec: of at most ``limit`` streams and :data:`MOST_CODEC_FRAMES` frames,
    but of one stream at least.
    """
    ordered = _most_urgent(candidates)[:limit]
    count = fitting([candidate.frames for candidate in ordered], MOST_CODEC_FRAMES)
    return [candidate.index for candidate in ordered[: max(1, count)]]


def fitting(sizes: Sequence[int], most: int) -> int:
    """How many of these, in their order, are together no more than ``most``."""
    return bisect_right(list(accumulate(sizes)), most)


def _most_urgent(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    newcomers = [candidate for candidate in candidates if candidate.dry_at is None]
    return sorted(newcomers or candidates, key=urgency)


@dataclass(slots=True)
class PromptPace:
    """How long newcomers take, from their prompts to their first audio, judged by those before them; and whose turn it
    is where the device is too slow for them and for the streams that play.
    """

    pass_s: float = 0.0
    """Seconds of the shortest pass; 0 while nothing is known."""
    row_s: float = 0.0
    """Seconds of one row of their prompts, in long passes; as above."""
    credit_s: float = 0.0
    """What newcomers may still take of the time of streams that have none to spare."""

    def note(self, rows: int, seconds: float, *, pressed: bool) -> None:
        """So many rows took so long; ``pressed``: on credit. What is faster than thought counts at once, what is slower
        little by little: many prompts take hardly longer than one, and a first call may compile.
        """
        self.pass_s = _mostly_faster(self.pass_s, seconds)
        self.row_s = _mostly_faster(self.row_s, seconds / rows)
        if pressed:
            self.credit_s = max(self.credit_s - seconds, -MOST_DEBT_S)

    def note_others(self, seconds: float) -> None:
        """Streams that play had so much time to themselves."""
        earned = seconds * NEWCOMERS_SHARE / (1 - NEWCOMERS_SHARE)
        self.credit_s = min(PRESSED_PASS_S, self.credit_s + earned)

    def lend(self) -> None:
        """Nobody else has anything to do now."""
        self.credit_s = max(self.credit_s, LEAST_CREDIT_S)

    def rows_within(self, seconds: float) -> int:
        """Rows of prompts of one pass, so that it ends within ``seconds``; at most :data:`MOST_PROMPT_ROWS`."""
        if seconds < self.pass_s:
            return 0
        if seconds >= MOST_PROMPT_ROWS * self.row_s:
            return MOST_PROMPT_ROWS
        return max(0, int(seconds / self.row_s))


def _mostly_faster(known: float, newest: float) -> float:
    return known + SMOOTHING * (newest - known) if known and newest > known else newest


@dataclass(slots=True)
class Throughput:
    """What the engine was seen to do, with the weight of the past halved every :data:`MEMORY_S` of work."""

    frames_a_character: float = 1.0
    """Of the texts that were spoken to their end; at first about that of English."""
    _frames: float = 0.0
    _seconds: float = 0.0

    def note_work(self, frames: int, seconds: float) -> None:
        """So many frames were made in a time in which the engine was at work."""
        keep = 0.5 ** (seconds / MEMORY_S)
        self._frames, self._seconds = keep * self._frames + frames, keep * self._seconds + seconds

    def note_end(self, frames: int, characters: int) -> None:
        """A text has been spoken to its end."""
        self.frames_a_character += SMOOTHING * (frames / characters - self.frames_a_character)

    @property
    def frames_a_second(self) -> float:
        """0 while nothing was made."""
        return self._frames / self._seconds if self._seconds else 0.0


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

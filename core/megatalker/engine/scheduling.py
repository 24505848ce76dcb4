"""Who goes next, how large a chunk is, how far playback is: arithmetic on times, without a clock of its own.

All times are seconds of one monotonic clock.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from megatalker.checkpoint.config import FRAME_SECONDS

UNBATCHED_STEPS = 2
"""Streams decoded per tick by a backend that takes them one after another: few, so that a newcomer waits little."""
MOST_PROMPT_ROWS = 2048
"""Of the prompts of one pass: below it a pass takes a fast device about the same time whatever its size."""
MOST_CODEC_STREAMS = 64
"""Of one step of the codec: larger ones save no time, and a newcomer waits for their end."""
MOST_CODEC_FRAMES = 128
"""As above, of all its streams."""
LONG_PASS_S = 0.04
"""About the longest pass of newcomers on a slow device, where larger ones save no time either."""
LONG_CODEC_STEP_S = 0.010
"""As above, of a step of the codec."""
SLACK_S = 0.02
"""Audio kept in hand for what cannot be foreseen: thread switches, the consumer's own work."""
LEAST_OF_ROUND = 0.5
"""From one frame of a stream to the next, whatever was seen of it. All of it would make chunks so small that handing
them out takes the time that is missing."""
A_LITTLE_SLOWER = 1.2
"""Than playback: chunks stay small, for larger ones would pause for longer where a moment's load passes."""
MOST_EXPECTED_S = 0.9 * FRAME_SECONDS
"""From one frame to the next, of a stream that has just begun: it is not given up as too slow."""
SMOOTHING = 0.3
"""Weight of the newest in estimates: of the time a frame takes, of the frames a text takes."""
MEMORY_S = 5.0
"""Of the estimate of frames a second."""
COST_MEMORY = 0.9
"""Weight of what was seen before, each time something new is seen."""
MOST_SURPRISE = 4.0
"""A launch that takes longer than so many of its kind counts as that: another process had the device, or memory was
touched for the first time."""
SOON_S = 0.1
"""Frames whose playback comes so soon are made audio before the next frames."""
MARGIN_S = 0.035
"""By which newcomers' passes may take longer than thought."""
NEWCOMERS_SHARE = 0.05
"""Of the time, for newcomers, where the device is too slow for them and for the streams that play."""
PRESSED_PASS_S = 0.02
"""About the longest pass of newcomers that started streams wait for though their playback runs dry."""
LEAST_CREDIT_S = 0.001
"""With which one pass of newcomers may begin."""
MOST_DEBT_S = 0.1
"""After a pass that took longer than its credit: the next should not have to wait for ever."""
SLOW_SHARE = 0.9
"""Of a frame's duration, from which on a device is too slow to make it for all in one launch."""
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

    def note_chunk(self, frames: int, ahead_s: float, most: int, round_s: float) -> None:
        """A chunk was handed out, ``ahead_s`` includes it. The next is twice as large if it fits in that time, but has
        no more frames than ``most``.

        ``round_s``: what the engine needs for a frame of everybody, audio included. No stream is taken to be much
        faster: right after a large chunk its own frames come quickly, and of one that has just begun nothing is known.
        """
        slow = round_s >= A_LITTLE_SLOWER * FRAME_SECONDS
        least_s = round_s if slow else LEAST_OF_ROUND * round_s
        self.frame_s = self.frame_s or min(least_s, MOST_EXPECTED_S)
        frame_s = max(self.frame_s, least_s)
        fits = int((ahead_s - self.reserve_s) / frame_s) if frame_s and not slow else 2 * frames
        self.target = max(1, min(2 * frames, self.max_frames, most, fits))

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


def select_audio(candidates: Sequence[Candidate], *, limit: int, frames: int) -> list[int]:
    """As :func:`select`, for one step of the codec: of at most ``limit`` streams and so many ``frames``, but of one
    stream at least.
    """
    ordered = _most_urgent(candidates)[:limit]
    count = fitting([candidate.frames for candidate in ordered], frames)
    return [candidate.index for candidate in ordered[: max(1, count)]]


def fitting(sizes: Sequence[int], most: float) -> int:
    """How many of these, in their order, are together no more than ``most``."""
    return bisect_right(list(accumulate(sizes)), most)


def _most_urgent(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    newcomers = [candidate for candidate in candidates if candidate.dry_at is None]
    return sorted(newcomers or candidates, key=urgency)


@dataclass(slots=True)
class Cost:
    """Seconds of one kind of launch by its size: the straight line through what was seen, the newest counting most."""

    _weight: float = 0.0
    _size: float = 0.0
    _seconds: float = 0.0
    _size_size: float = 0.0
    _size_seconds: float = 0.0
    fixed_s: float = 0.0
    """Of any launch; 0 while nothing was seen."""
    each_s: float = 0.0
    """Of one more; as above."""

    def note(self, size: int, seconds: float) -> None:
        """A launch of this size, at least 1, took so long."""
        if self._weight:
            seconds = min(seconds, MOST_SURPRISE * self.of(size))
        self._weight = COST_MEMORY * self._weight + 1
        self._size = COST_MEMORY * self._size + size
        self._seconds = COST_MEMORY * self._seconds + seconds
        self._size_size = COST_MEMORY * self._size_size + size * size
        self._size_seconds = COST_MEMORY * self._size_seconds + size * seconds
        size_mean, seconds_mean = self._size / self._weight, self._seconds / self._weight
        spread = self._size_size / self._weight - size_mean * size_mean
        least = 0.1 * seconds_mean / size_mean
        if spread < 1:  # all of one size: half of it grows, for want of better knowledge
            self.each_s = seconds_mean / (2 * size_mean)
        else:
            self.each_s = max(least, (self._size_seconds / self._weight - size_mean * seconds_mean) / spread)
        self.fixed_s = max(0.0, seconds_mean - self.each_s * size_mean)

    def of(self, size: int) -> float:
        """Expected seconds."""
        return self.fixed_s + size * self.each_s

    def within(self, seconds: float) -> float:
        """The size of a launch that takes so long; infinite while nothing was seen."""
        return (seconds - self.fixed_s) / self.each_s if self.each_s else math.inf


@dataclass(frozen=True, slots=True)
class Playing:
    """A stream that plays, and needs more than it has."""

    dry_at: float
    """When its playback runs dry, the audio under way included."""
    frames: int
    """Decoded, to be made audio soon."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the next pass of newcomers may take, so that nobody's playback runs dry."""

    rows: float
    """Of prompts."""
    streams: float


@dataclass(slots=True)
class Pace:
    """Judges whether newcomers may begin; and whose turn it is where the device is too slow for them and for the
    streams that play.
    """

    prompts: Cost = field(default_factory=Cost)
    """A pass of newcomers from prompts to first audio, by rows of their prompts."""
    frames: Cost = field(default_factory=Cost)
    """A launch of the talker, by streams."""
    audio: Cost = field(default_factory=Cost)
    """A step of the codec, by frames."""
    credit_s: float = 0.0
    """What newcomers may still take of the time of streams that have none to spare."""
    _free_at: float = 0.0
    """When the device had done what was asked of it last: what is launched while it computes begins then."""

    def room(self, playing: Iterable[Playing], now: float) -> Room:
        """For a pass that begins ``now``. After it what was decoded is made audio, then the others get a frame each,
        with the newcomers; always those first whose playback runs dry first.
        """
        ordered = sorted(playing, key=lambda one: one.dry_at)
        if not ordered:
            return Room(math.inf, math.inf)
        decoded = [one for one in ordered if one.frames]
        others = [one for one in ordered if not one.frames]
        each_s = self.audio.of(self.most_frames) / self.most_frames
        ends = list(accumulate(one.frames * each_s for one in decoded))
        audio_s, launch_s = ends[-1] if ends else 0.0, self.frames.of(len(ordered))
        ends += [audio_s + launch_s + (place + 1) * each_s for place in range(len(others))]
        spare_s = min(one.dry_at - end for one, end in zip(decoded + others, ends, strict=True)) - now - MARGIN_S
        first_s = FRAME_SECONDS - MARGIN_S - audio_s - launch_s
        before = sum(one.dry_at < now + self.prompts.fixed_s + FRAME_SECONDS for one in others)
        return Room(self.prompts.within(spare_s), first_s / each_s - before if each_s else math.inf)

    def is_slow(self, streams: int) -> bool:
        """A frame of so many streams, as audio, takes most of its own duration."""
        return self.frames.of(streams) + streams * self.audio.each_s > SLOW_SHARE * FRAME_SECONDS

    @property
    def most_rows(self) -> int:
        """Of prompts in one pass."""
        return _at_most(MOST_PROMPT_ROWS, self.prompts.within(LONG_PASS_S))

    @property
    def most_frames(self) -> int:
        """Of one step of the codec."""
        return _at_most(MOST_CODEC_FRAMES, self.audio.within(LONG_CODEC_STEP_S))

    def rows_on_credit(self) -> float:
        """As :attr:`Room.rows`, of a pass for which others wait though their playback runs dry; 0: not now."""
        return max(1.0, self.prompts.within(PRESSED_PASS_S)) if self.credit_s > 0 else 0.0

    def note_pass(self, rows: int, seconds: float, *, pressed: bool) -> None:
        """Newcomers with so many rows of prompts took so long; ``pressed``: on credit."""
        self.prompts.note(rows, seconds)
        if pressed:
            self.credit_s = max(self.credit_s - seconds, -MOST_DEBT_S)

    def note_frames(self, streams: int, launched_at: float, done_at: float) -> None:
        """The talker made a frame for so many streams."""
        self.frames.note(streams, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def note_audio(self, frames: int, launched_at: float, done_at: float) -> None:
        """The codec made so many frames audio."""
        self.audio.note(frames, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def note_others(self, seconds: float) -> None:
        """Streams that play had so much time to themselves."""
        earned = seconds * NEWCOMERS_SHARE / (1 - NEWCOMERS_SHARE)
        self.credit_s = min(PRESSED_PASS_S, self.credit_s + earned)

    def lend(self) -> None:
        """Nobody else has anything to do now."""
        self.credit_s = max(self.credit_s, LEAST_CREDIT_S)


def _at_most(limit: int, size: float) -> int:
    return int(max(1, min(limit, size)))


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

"""Who goes next, what launches take, and how much of the time newcomers get beside streams that play: arithmetic on
times, without a clock of its own.

All times are seconds of one monotonic clock.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.chunks import SMOOTHING

UNBATCHED_STEPS = 2
"""Streams decoded per tick by a backend that takes them one after another: few, so that a newcomer waits little."""
MOST_CODEC_STREAMS = 64
"""Of one step of the codec: larger ones save no time, and a newcomer waits for their end."""
MEMORY_S = 2.0
"""Of the estimate of frames a second."""
SLOWDOWN_MEMORY_S = 0.4
"""Of :attr:`Pace.slowdown`, as above."""
MOST_PROMPT_ROWS = 5120
"""Of the prompts of one pass, about 150 sentences."""
MOST_CODEC_FRAMES = 128
"""Of one step of the codec: larger ones save no time."""
LONG_PASS_S = 0.06
"""About the longest pass of newcomers on a slow device, where larger ones save no time either."""
LONG_CODEC_STEP_S = 0.010
"""As above, of a step of the codec."""
LONG_PASS_BESIDE_S = 0.03
"""Of a pass of newcomers beside streams that play, on any device: what it takes is foreseen the worse the longer it is.
"""
COST_MEMORY = 0.9
"""Weight of what was seen before, each time something new is seen."""
MOST_SURPRISE = 4.0
"""A launch that takes longer than so many of its kind counts as that: another process had the device, or memory was
touched for the first time."""
MARGIN_S = 0.035
"""By which newcomers' passes may take longer than thought."""
AUDIO_MARGIN_S = 0.05
"""By which audio may come later than thought, a pass of newcomers before it included."""
FRAMES_MARGIN_S = 0.01
"""As above, of a launch of frames."""
NEWCOMERS_SHARE = 0.05
"""Of the time, for newcomers, where the device is too slow for them and for the streams that play."""
MOST_SHARE = 0.95
"""As above, where those that play need hardly anything."""
SAVED_S = 0.003
"""Of others' time: what newcomers get beside it is all they can save up for a pass that follows at once."""
PRESSED_PASS_S = 0.02
"""About the longest pass of newcomers that started streams wait for though their playback runs dry."""
LEAST_CREDIT_S = 0.001
"""With which one pass of newcomers may begin."""
MOST_DEBT_S = 0.01
"""After a pass: when many come at once, the next one should not have to wait for long."""
MOST_PRESSED_DEBT_S = 0.1
"""As above, before one for which others' playback runs dry."""
SLOW_SHARE = 0.9
"""Of a frame's duration, from which on a device is too slow to make it for all in one launch."""
SOON_S = 0.1
"""Frames whose playback comes so soon are made audio before the next frames."""
REST_S = 0.3
"""A stream that has had no work for so long lends its row: words of one sentence come faster."""


class Candidate(NamedTuple):
    """A stream that could decode a frame, or have audio made, now."""

    place: int
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
    return [candidate.place for candidate in _most_urgent(candidates)[:most]]


def select_audio(candidates: Sequence[Candidate], *, limit: int, frames: int) -> list[int]:
    """As :func:`select`, for one step of the codec: of at most ``limit`` streams and so many ``frames``, but of one
    stream at least.
    """
    ordered = _most_urgent(candidates)[:limit]
    count = fitting([candidate.frames for candidate in ordered], frames)
    return [candidate.place for candidate in ordered[: max(1, count)]]


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


class Playing(NamedTuple):
    """A stream that plays, and needs more than it has."""

    dry_at: float
    """When its playback runs dry, the audio under way included."""
    frames: int
    """Decoded, to be made audio soon."""


class AudioOrFrame(NamedTuple):
    """What streams that play need next."""

    pressed_until: float
    """Audio is due of all whose playback runs dry by this moment."""
    frames_first: bool
    """Audio that is due can wait for a launch of frames, and somebody's next frame cannot wait for audio."""


class Room(NamedTuple):
    """What the next pass of newcomers may take, so that nobody's playback runs dry."""

    rows: float
    """Of prompts."""
    streams: float


@dataclass(slots=True)
class Account:
    """Of time that newcomers may take: it grows while others are served, and pays for passes."""

    most_debt_s: float
    balance_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """A pass may begin."""
        return self.balance_s > 0

    def earn(self, seconds: float, share: float) -> None:
        """Others had so much time, beside which newcomers have a ``share`` of all; little of it is kept."""
        self.balance_s = min(_beside(SAVED_S, share), self.balance_s + _beside(seconds, share))

    def spend(self, seconds: float) -> None:
        """A pass took so long."""
        self.balance_s = max(self.balance_s - seconds, -self.most_debt_s)

    def lend(self) -> None:
        """Enough for one pass."""
        self.balance_s = max(self.balance_s, LEAST_CREDIT_S)


@dataclass(slots=True)
class Pace:
    """Judges whether newcomers may begin: they get the time that streams that play do not need, and a small share of
    it where the device is too slow for both.
    """

    prompts: Cost = field(default_factory=Cost)
    """A pass of newcomers from prompts to first audio, by rows of their prompts."""
    frames: Cost = field(default_factory=Cost)
    """A launch of the talker, by streams."""
    audio: Cost = field(default_factory=Cost)
    """A step of the codec, by frames."""
    turn: Account = field(default_factory=lambda: Account(MOST_DEBT_S))
    """For passes for which others have the time."""
    credit: Account = field(default_factory=lambda: Account(MOST_PRESSED_DEBT_S))
    """For passes for which they have none to spare: of the share that newcomers get at least, what others have not paid
    yet.
    """
    _played_s: float = 0.0
    """Of late, the time that streams that play had to themselves,"""
    _needed_s: float = 0.0
    """and what a device alone needs for the frames they got in it."""
    _free_at: float = 0.0
    """When the device had done what was asked of it last: what is launched while it computes begins then."""

    def room(self, playing: Iterable[Playing], now: float) -> Room:
        """For a pass that begins ``now``. After it what was decoded is made audio, then the others get a frame each,
        with the newcomers; always those first whose playback runs dry first.
        """
        ordered = sorted(playing)
        if not ordered:
            return Room(math.inf, math.inf)
        decoded = [one for one in ordered if one.frames]
        others = [one for one in ordered if not one.frames]
        slowdown = self.slowdown
        each_s, launch_s = slowdown * self._audio_each_s, slowdown * self.frames.of(len(ordered))
        ends = list(accumulate(one.frames * each_s for one in decoded))
        audio_s = ends[-1] if ends else 0.0
        ends += [audio_s + launch_s + (place + 1) * each_s for place in range(len(others))]
        spare_s = min(one.dry_at - end for one, end in zip(decoded + others, ends, strict=True)) - now - MARGIN_S
        first_s = FRAME_SECONDS - MARGIN_S - audio_s - launch_s
        before = sum(one.dry_at < now + self.prompts.fixed_s + FRAME_SECONDS for one in others)
        rows = self.prompts.within(min(spare_s, LONG_PASS_BESIDE_S))
        return Room(rows, first_s / each_s - before if each_s else math.inf)

    def audio_or_frame(self, decoded: Iterable[Playing], hungry_at: float, streams: int, now: float) -> AudioOrFrame:
        """Whose turn is it: of audio of what was ``decoded``, made first for those whose playback runs dry first, or of
        a frame for so many ``streams``? Of those that have none decoded the first runs dry at ``hungry_at``.

        Where the device is too slow for all nobody's audio is pressed for: in larger pieces it costs less.
        """
        if self.is_slow(streams):
            return AudioOrFrame(-math.inf, frames_first=False)
        launch_s, each_s = self.frames.of(streams), self._audio_each_s
        pressed_until, least_s, done_at = -math.inf, math.inf, now
        for dry_at, frames in sorted(decoded):
            done_at += frames * each_s
            spare_s = dry_at - done_at - launch_s
            least_s = min(least_s, spare_s)
            if spare_s < AUDIO_MARGIN_S:
                pressed_until = dry_at
        frame_s = launch_s + 2 * self.most_frames * each_s + FRAMES_MARGIN_S  # with audio before and after it
        return AudioOrFrame(pressed_until, least_s > FRAMES_MARGIN_S and hungry_at - now < frame_s)

    def is_slow(self, streams: int) -> bool:
        """A frame of so many streams, as audio, takes most of its own duration."""
        return self.need(streams) > SLOW_SHARE

    def need(self, streams: int) -> float:
        """The share of a device's time that a frame of so many streams takes, as audio."""
        return (self.frames.of(streams) + streams * self.audio.each_s) / FRAME_SECONDS

    @property
    def slowdown(self) -> float:
        """How many times as long as a device alone needs do frames take those that play: a host that hands out audio
        keeps it waiting. 1 while nothing is known.
        """
        return max(1.0, self._played_s / self._needed_s) if self._needed_s else 1.0

    @property
    def most_rows(self) -> int:
        """Of prompts in one pass."""
        return _at_most(MOST_PROMPT_ROWS, self.prompts.within(LONG_PASS_S))

    @property
    def most_frames(self) -> int:
        """Of one step of the codec."""
        return _at_most(MOST_CODEC_FRAMES, self.audio.within(LONG_CODEC_STEP_S))

    @property
    def _audio_each_s(self) -> float:
        """Of a frame, in full steps of the codec."""
        return self.audio.of(self.most_frames) / self.most_frames

    @property
    def is_open(self) -> bool:
        """A pass of newcomers may begin, were there room for it."""
        return self.turn.is_open or self.credit.is_open

    def rows_on_credit(self) -> float:
        """As :attr:`Room.rows`, of a pass for which others wait though their playback runs dry; 0: not now."""
        return max(1.0, self.prompts.within(PRESSED_PASS_S)) if self.credit.is_open else 0.0

    def note_pass(self, rows: int, seconds: float, *, beside: bool) -> None:
        """Newcomers with so many rows of prompts took so long; ``beside``: while others played, who pay for it."""
        self.prompts.note(rows, seconds)
        self.turn.spend(seconds)
        if beside:
            self.credit.spend(seconds)

    def note_frames(self, streams: int, launched_at: float, done_at: float) -> None:
        """The talker made a frame for so many streams."""
        self.frames.note(streams, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def note_audio(self, frames: int, launched_at: float, done_at: float) -> None:
        """The codec made so many frames audio."""
        self.audio.note(frames, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def note_others(self, seconds: float, streams: int, frames: int) -> None:
        """So many streams that play had so much time to themselves, and got so many frames."""
        keep = 0.5 ** (seconds / SLOWDOWN_MEMORY_S)
        needed_s = FRAME_SECONDS * self.need(frames) if frames else 0.0
        if needed_s or self._needed_s:  # else nobody knows yet what launches take
            self._played_s, self._needed_s = keep * self._played_s + seconds, keep * self._needed_s + needed_s
        self.credit.earn(seconds, NEWCOMERS_SHARE)
        need = self.slowdown * self.need(streams)
        granted = need * (1 + need**2)  # what they have in hand must not shrink; a full device can catch up the least
        self.turn.earn(seconds, min(MOST_SHARE, max(NEWCOMERS_SHARE, 1 - granted)))

    def lend(self) -> None:
        """Nobody else has anything to do now."""
        self.credit.lend()
        self.turn.lend()


def _beside(seconds: float, share: float) -> float:
    """Beside so much time of others, the rest of which is a ``share`` of all."""
    return seconds * share / (1 - share)


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

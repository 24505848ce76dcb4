"""Costs of launches, learnt from those that were made, the time that prefill may take, and the clock of deadlines. All
times are seconds.

A launch costs the time that the engine's thread spends on it, the host's work included: choosing it, waiting for the
device, and handing out what comes of it. The costs of all launches in a second add up to a second, so what a frame of
every stream needs is known for host and device together.
"""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from megatalker.checkpoint.config import FRAME_SECONDS

LEAST_SHARE = 0.05  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Share of the time that prefill gets where streams need all of it, and that they get where they need hardly any."""
MOST_DEBT_S = 0.01  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The most that is owed after a prefill batch, and the most that is saved for one: when many requests come at once, the
next batch should not wait long."""
MOST_FORCED_DEBT_S = 0.1  # not tuned: a bound for mishaps, which no load reaches
"""The most that is owed before a batch for which others wait though their playback runs dry."""
SUSTAINABLE = 0.9  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Share of the time that playing streams may need, so that each gets its audio in time."""
NEARLY_FULL = 0.7  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Share of the time from which on requests begin only if playing streams get further ahead."""
MOST_CODEC_FRAMES = 128  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Frames of the largest codec step: larger ones save no time."""
MOST_CODEC_S = 0.01  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The longest codec step on a slow device, where larger ones save no time either."""
MOST_PREFILL_S = 0.06  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The longest prefill batch while nothing plays: on a slow device larger ones save no time. After this long a batch
takes no further prompts, because until a device is known it may be slow."""
UNBATCHED_STREAMS = 2  # not tuned: the fewest of which the second does not wait for the first
"""Streams of a decode step of a backend that takes them one after another."""
NEWEST = 0.2  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Weight of the newest observation: of a launch in what its size costs, of a text in :class:`Throughput`."""
MOST_SURPRISE = 4.0  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""A launch that takes longer than this many times the prediction counts as that: another process had the device."""
GROWING_SHARE = 0.5  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Share of a launch's time that grows with its size, where only one size is known."""
LEAST_GROWING_SHARE = 0.1  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The least share that grows with the size beyond the largest that is known."""
MOST_UNEVEN = 1.25  # not tuned: with 1.1 and 2 no figure moves
"""A launch may take this much longer for each unit of its size than a smaller one; more counts as a mishap."""
MOST_STREAMS = 4096  # not tuned: a bound of the search
"""No more streams are looked for; the setting ``max_streams`` allows as many."""
MEMORY_S = 2.0  # not tuned: with 0.5 and 8 s all foreseen waits hold
"""Seconds of work after which an observation counts half in :meth:`Throughput.round_s`."""


@dataclass(slots=True)
class Cost:
    """Seconds of one kind of launch by its size: a line from each size that was observed to the next."""

    _points: dict[int, tuple[float, float, bool]] = field(default_factory=dict)
    """Size, seconds, and whether the backend was warm, for each half octave of sizes."""
    _line: tuple[Sequence[float], Sequence[float], float] = (), (), 0.0
    """Sizes in order, seconds of each, and seconds of one more unit beyond the largest. Replaced as a whole, because
    callers' threads predict while the worker observes."""

    def observe(self, size: int, seconds: float, *, warm: bool = True) -> None:
        """Learn from a launch of this size, at least 1. What a backend that is not ``warm`` takes, which may compile
        inside its calls, counts until the next launch only.
        """
        bucket = int(2 * math.log2(size))
        known = self._points.get(bucket)
        if warm and self._points and (known is None or known[2]):
            seconds = min(seconds, MOST_SURPRISE * self.predict(size))
        if known is None or not (warm and known[2]):
            self._points[bucket] = float(size), seconds, warm
        else:
            mean = known[0] + NEWEST * (size - known[0])
            self._points[bucket] = mean, known[1] + NEWEST * (seconds - known[1]), True
        sizes, costs = list[float](), list[float]()
        for at, cost_s, _ in sorted(self._points.values()):
            if sizes:  # a larger launch takes longer, and not longer for each unit of its size
                least, share = costs[-1], at / sizes[-1]
                cost_s = min(max(cost_s, least), MOST_UNEVEN * share * least)
            sizes.append(at)
            costs.append(cost_s)
        mean_s = costs[-1] / sizes[-1]
        each_s = GROWING_SHARE * mean_s
        if len(sizes) > 1:
            each_s = max(LEAST_GROWING_SHARE * mean_s, (costs[-1] - costs[0]) / (sizes[-1] - sizes[0]))
        self._line = sizes, costs, each_s

    @property
    def largest(self) -> float:
        """The largest size that is known; 0 while nothing was observed."""
        sizes, _, _ = self._line
        return sizes[-1] if sizes else 0.0

    def predict(self, size: float) -> float:
        """Return the expected seconds of a launch; 0 while nothing was observed."""
        sizes, seconds, each_s = self._line
        if not sizes:
            return 0.0
        if size >= sizes[-1]:
            return seconds[-1] + (size - sizes[-1]) * each_s
        if size <= sizes[0]:
            return seconds[0] * (1 - GROWING_SHARE * (1 - size / sizes[0]))
        place = bisect_left(sizes, size)
        share = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])

    def size_within(self, seconds: float) -> float:
        """Return the size of a launch that takes this long; infinite while nothing was observed."""
        sizes, known, each_s = self._line
        if not sizes or not known[-1]:
            return math.inf
        if seconds >= known[-1]:
            return sizes[-1] + (seconds - known[-1]) / each_s
        if seconds < known[0]:
            return sizes[0] * (1 - (1 - seconds / known[0]) / GROWING_SHARE)
        place = bisect_right(known, seconds)
        share = (seconds - known[place - 1]) / (known[place] - known[place - 1])
        return sizes[place - 1] + share * (sizes[place] - sizes[place - 1])


@dataclass(slots=True)
class Costs:
    """Costs of launches on this device and host."""

    prefill: Cost = field(default_factory=Cost)
    """A prefill batch from its prompts to its first audio, by rows of its prompts."""
    decode: Cost = field(default_factory=Cost)
    """A decode step, by streams."""
    codec: Cost = field(default_factory=Cost)
    """A codec step, by frames."""
    most_decoded: float = math.inf
    """Streams of one decode step."""
    most_frames: int = MOST_CODEC_FRAMES
    """Frames of the largest codec step."""
    audio_each_s: float = 0.0
    """Seconds of a frame's audio in the largest codec step; 0 while nothing was observed."""
    _codec_s: float = 0.0
    """Seconds of recent codec steps."""
    _codec_frames: float = 0.0
    """Frames of recent codec steps."""

    def observe_codec(self, frames: int, seconds: float, *, warm: bool) -> None:
        """Learn from a codec step."""
        self.codec.observe(frames, seconds, warm=warm)
        self.most_frames = int(max(1, min(MOST_CODEC_FRAMES, self.codec.size_within(MOST_CODEC_S))))
        self.audio_each_s = self.codec.predict(self.most_frames) / self.most_frames
        keep = 0.9 if warm else 0.0
        self._codec_s, self._codec_frames = keep * self._codec_s + seconds, keep * self._codec_frames + frames

    def decode_s(self, streams: int) -> float:
        """Return the seconds of a frame of each of these streams."""
        if streams <= self.most_decoded:
            return self.decode.predict(streams)
        return streams / self.most_decoded * self.decode.predict(self.most_decoded)

    def need(self, streams: int) -> float:
        """Return the share of the time that a frame of each stream takes, with its audio; 0 while that is unknown.

        Its audio takes what it took lately: while streams have little audio in hand, their chunks are small and cost
        more. Chunks grow only if time is left.
        """
        each_s = self._codec_s / self._codec_frames if self._codec_frames else 0.0
        return (self.decode_s(streams) + streams * each_s) / FRAME_SECONDS

    @property
    def sustainable_streams(self) -> float:
        """How many streams can play without a gap, but one at least; infinite while that is unknown."""
        if not self._codec_s or not self.decode.predict(1):
            return math.inf
        fewest, most = 1, MOST_STREAMS
        while fewest < most:
            middle = (fewest + most + 1) // 2
            if self.need(middle) <= SUSTAINABLE:
                fewest = middle
            else:
                most = middle - 1
        return fewest

    @property
    def proven_streams(self) -> float:
        """How many streams can play without a gap, where half as many have been decoded together; infinite before,
        because what a few streams cost says little of hundreds.
        """
        most = self.sustainable_streams
        return most if 2 * self.decode.largest >= most else math.inf

    @property
    def most_rows(self) -> float:
        """Rows of the largest prefill batch."""
        return max(1.0, self.prefill.size_within(MOST_PREFILL_S))


@dataclass(slots=True)
class Budget:
    """Time for prefill while streams are playing: it grows while they are served, and pays for batches."""

    spare_s: float = 0.0
    """Time that playing streams can do without."""
    floor_s: float = 0.0
    """Time that waiting requests get whatever the others need: a batch may begin that makes these wait."""

    def earn(self, seconds: float, need: float) -> None:
        """Earn from time in which streams that ``need`` this share of it were served."""
        granted = need * (1 + need**2)  # the fuller a device, the more slowly it catches up
        self.spare_s = _earned(self.spare_s, seconds, min(1 - LEAST_SHARE, max(LEAST_SHARE, 1 - granted)))
        self.floor_s = _earned(self.floor_s, seconds, LEAST_SHARE)

    def spend(self, seconds: float, *, others_waited: bool) -> None:
        """Pay for a prefill batch. Little is owed: when many come at once, the next batch should not wait for long."""
        self.spare_s = max(self.spare_s - seconds, -MOST_DEBT_S)
        if others_waited:
            self.floor_s = max(self.floor_s - seconds, -MOST_FORCED_DEBT_S)


def _earned(balance_s: float, seconds: float, share: float) -> float:
    return min(MOST_DEBT_S, balance_s + seconds * share / (1 - share))


@dataclass(slots=True)
class Throughput:
    """Speed of the engine as it was observed."""

    costs: Costs
    frames_a_character: float = 1.0
    """Frames of texts that were spoken to their end; at first about those of English."""
    _frames_s: float = 0.0
    _seconds: float = 0.0

    def observe_work(self, frames_s: float, seconds: float) -> None:
        """The engine worked for these seconds, of which the frames that it made should have taken ``frames_s``."""
        keep = 0.5 ** (seconds / MEMORY_S)
        self._frames_s, self._seconds = keep * self._frames_s + frames_s, keep * self._seconds + seconds

    def observe_end(self, frames: int, characters: int) -> None:
        """A text has been spoken to its end."""
        self.frames_a_character += NEWEST * (frames / characters - self.frames_a_character)

    def round_s(self, streams: int) -> float:
        """Return how long a frame of each stream takes while requests go on beginning: the rest of the time is theirs.
        0 while that is unknown.
        """
        share = self._frames_s / self._seconds if self._frames_s else 1.0
        return FRAME_SECONDS * self.costs.need(streams) / share


class RunningClock:
    """Seconds in which this process was running. Thread-safe.

    A process that is stopped (SIGSTOP, ``docker pause``, a debugger) or swapped out does not run, and neither does what
    it waits for in itself. Such a pause shows as a long gap between two readings, so something must read the clock
    regularly, at intervals well below ``longest_gap_s``.

    Args:
        source: seconds that pass in any case, monotonic.
        longest_gap_s: of a longer gap between two readings this much is counted. By default all of it.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic, longest_gap_s: float = math.inf) -> None:
        self._source, self._longest_gap_s = source, longest_gap_s
        self._lock = threading.RLock()  # a finalizer may read the clock while this thread holds it
        self._read_at = source()
        self._paused_s = 0.0

    def __call__(self) -> float:
        """Seconds since some moment, pauses left out."""
        now = self._source()
        if now - self._read_at > self._longest_gap_s:
            return self._after_pause()
        if now > self._read_at:  # without the lock, on which threads would wait for each other at each reading
            self._read_at = now
        return now - self._paused_s

    def _after_pause(self) -> float:
        with self._lock:  # the first thread to read the clock counts the pause, once
            now = self._source()
            self._paused_s += max(0.0, now - self._read_at - self._longest_gap_s)
            self._read_at = now
            return now - self._paused_s

    @property
    def paused_s(self) -> float:
        """Seconds of pauses until now."""
        self()
        return self._paused_s

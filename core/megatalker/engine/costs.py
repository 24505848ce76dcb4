"""Costs of launches, learnt from those that were made, and the time that prefill may take. All times are seconds."""

import math
from dataclasses import dataclass, field

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.chunks import SMOOTHING

MOST_SHARE = 0.95
"""Share of the time that prefill gets while streams need hardly anything."""
LEAST_SHARE = 0.05
"""Share of the time that prefill gets where streams need all of it."""
MOST_DEBT_S = 0.01
"""The most that is owed after a prefill batch: when many requests come at once, the next batch should not wait long."""
MOST_FORCED_DEBT_S = 0.1
"""The most that is owed before a batch for which others wait though their playback runs dry."""
SAVED_S = 0.003
"""The budget keeps what it earns in this much time of others."""
SUSTAINABLE = 0.9
"""Share of the time that playing streams may need, so that each gets its audio in time."""
LEAST_KNOWN = 0.5
"""Share of the time from which on the need of more streams can be told from that of those observed."""
MOST_CODEC_FRAMES = 128
"""Frames of the largest codec step: larger ones save no time."""
MOST_CODEC_S = 0.01
"""The longest codec step on a slow device, where larger ones save no time either."""
MOST_PREFILL_S = 0.06
"""The longest prefill batch while nothing plays: on a slow device larger ones save no time."""
COST_MEMORY = 0.9
"""Weight of earlier launches in predictions, for each later one."""
MOST_SURPRISE = 4.0
"""A launch that takes longer than this many times the prediction counts as that: another process had the device."""
MEMORY_S = 2.0
"""Seconds of work after which an observation counts half in :attr:`Throughput.frames_a_second`."""
SLOWDOWN_MEMORY_S = 0.4
"""Half-life of what :attr:`Costs.slowdown` is estimated from."""


@dataclass(slots=True)
class Cost:
    """Seconds of one kind of launch by its size: the line through what was observed, the newest counting most."""

    _weight: float = 0.0
    _size: float = 0.0
    _seconds: float = 0.0
    _size_size: float = 0.0
    _size_seconds: float = 0.0
    fixed_s: float = 0.0
    """Seconds of any launch; 0 while nothing was observed."""
    each_s: float = 0.0
    """Seconds for each unit of size; 0 while nothing was observed."""

    def observe(self, size: int, seconds: float) -> None:
        """Learn from a launch of this size, at least 1."""
        if self._weight:
            seconds = min(seconds, MOST_SURPRISE * self.predict(size))
        self._weight = COST_MEMORY * self._weight + 1
        self._size = COST_MEMORY * self._size + size
        self._seconds = COST_MEMORY * self._seconds + seconds
        self._size_size = COST_MEMORY * self._size_size + size * size
        self._size_seconds = COST_MEMORY * self._size_seconds + size * seconds
        size_mean, seconds_mean = self._size / self._weight, self._seconds / self._weight
        spread = self._size_size / self._weight - size_mean * size_mean
        least = 0.1 * seconds_mean / size_mean
        if spread < 1:  # all of one size: half of it grows with the size, for want of better knowledge
            self.each_s = 0.5 * seconds_mean / size_mean
        else:
            self.each_s = max(least, (self._size_seconds / self._weight - size_mean * seconds_mean) / spread)
        self.fixed_s = max(0.0, seconds_mean - self.each_s * size_mean)

    def predict(self, size: int) -> float:
        """Return the expected seconds of a launch."""
        return self.fixed_s + size * self.each_s

    def size_within(self, seconds: float) -> float:
        """Return the size of a launch that takes this long; infinite while nothing was observed."""
        return (seconds - self.fixed_s) / self.each_s if self.each_s else math.inf


@dataclass(slots=True)
class Costs:
    """Costs of launches on this device and host, learnt from those that were made."""

    prefill: Cost = field(default_factory=Cost)
    """A prefill batch from its prompts to its first audio, by rows of its prompts."""
    frames: Cost = field(default_factory=Cost)
    """A decode step, by streams."""
    audio: Cost = field(default_factory=Cost)
    """A codec step, by frames."""
    _taken_s: float = 0.0
    """Recent time in which playing streams were served."""
    _predicted_s: float = 0.0
    """Time that launches alone would have taken for the frames that these got in it."""
    _running: int = 0
    """Streams that were served then."""
    _free_at: float = 0.0
    """When the device had done its last launch: what is launched while it computes begins then."""

    def observe_frames(self, streams: int, launched_at: float, done_at: float) -> None:
        """Learn from a decode step."""
        self.frames.observe(streams, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def observe_audio(self, frames: int, launched_at: float, done_at: float) -> None:
        """Learn from a codec step."""
        self.audio.observe(frames, done_at - max(launched_at, self._free_at))
        self._free_at = done_at

    def observe_serving(self, seconds: float, streams: int, frames: int) -> None:
        """Playing streams had the device for these seconds and got this many frames."""
        self._running = streams
        keep = 0.5 ** (seconds / SLOWDOWN_MEMORY_S)
        predicted_s = FRAME_SECONDS * self.need(frames) if frames else 0.0
        if predicted_s or self._predicted_s:
            self._taken_s = keep * self._taken_s + seconds
            self._predicted_s = keep * self._predicted_s + predicted_s

    def need(self, streams: int) -> float:
        """Return the share of the device's time that a frame of each stream takes, with its audio."""
        return (self.frames.predict(streams) + streams * self.audio.each_s) / FRAME_SECONDS

    @property
    def slowdown(self) -> float:
        """How many times as long as its launches serving streams takes: the host hands out chunks, too."""
        return max(1.0, self._taken_s / self._predicted_s) if self._predicted_s else 1.0

    @property
    def sustainable_streams(self) -> float:
        """How many streams can play without a gap, by what whole ticks took, host and device together; infinite while
        that is unknown, or where not even one can.
        """
        if self.slowdown * self.need(self._running) < LEAST_KNOWN or not (self.frames.each_s and self.audio.each_s):
            return math.inf
        each_s = self.frames.each_s + self.audio.each_s
        streams = (SUSTAINABLE * FRAME_SECONDS / self.slowdown - self.frames.fixed_s) / each_s
        return math.floor(streams) if streams >= 1 else math.inf

    @property
    def most_rows(self) -> float:
        """Rows of the largest prefill batch."""
        return max(1.0, self.prefill.size_within(MOST_PREFILL_S))

    @property
    def most_frames(self) -> int:
        """Frames of the largest codec step."""
        return int(max(1, min(MOST_CODEC_FRAMES, self.audio.size_within(MOST_CODEC_S))))

    @property
    def audio_each_s(self) -> float:
        """Seconds of a frame's audio in the largest codec step."""
        return self.audio.predict(self.most_frames) / self.most_frames


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
        self.spare_s = _earned(self.spare_s, seconds, min(MOST_SHARE, max(LEAST_SHARE, 1 - granted)))
        self.floor_s = _earned(self.floor_s, seconds, LEAST_SHARE)

    def spend(self, seconds: float, *, others_waited: bool) -> None:
        """Pay for a prefill batch. Little is owed: when many come at once, the next batch should not wait for long."""
        self.spare_s = max(self.spare_s - seconds, -MOST_DEBT_S)
        if others_waited:
            self.floor_s = max(self.floor_s - seconds, -MOST_FORCED_DEBT_S)


def _earned(balance_s: float, seconds: float, share: float) -> float:
    gain = share / (1 - share)
    return min(SAVED_S * gain, balance_s + seconds * gain)


@dataclass(slots=True)
class Throughput:
    """Speed of the engine as it was observed."""

    frames_a_character: float = 1.0
    """Frames of texts that were spoken to their end; at first about those of English."""
    _frames: float = 0.0
    _seconds: float = 0.0

    def observe_work(self, frames: int, seconds: float) -> None:
        """The engine worked for these seconds and made these frames."""
        keep = 0.5 ** (seconds / MEMORY_S)
        self._frames, self._seconds = keep * self._frames + frames, keep * self._seconds + seconds

    def observe_end(self, frames: int, characters: int) -> None:
        """A text has been spoken to its end."""
        self.frames_a_character += SMOOTHING * (frames / characters - self.frames_a_character)

    @property
    def frames_a_second(self) -> float:
        """Frames made in a second of work; 0 while nothing was made."""
        return self._frames / self._seconds if self._seconds else 0.0

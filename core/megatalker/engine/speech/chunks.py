"""Chunks of audio: how large they are, when playback will have used them up, and the queue that carries them from the
worker to the consumer, which may sit in any thread or event loop.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Protocol

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine.speech.outputs import BackendSwitch, Chunk, FinishReason
from megatalker.engine.speech.word_times import BegunSegment

SLACK_S = 0.02  # tuned, not measured
"""Audio kept in hand for what cannot be foreseen: thread switches, the consumer's own work."""
BUSY_SHARE = 0.75  # measured: docs/notes/throughput.md#larger-chunks
"""Share of the time that frames of all streams take, from which on chunks grow as fast as they may: they cost less."""


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
class Progress:
    """Facts of an utterance that the worker writes down for its consumer."""

    seed: int
    requested_at: float
    backend: str
    codec: str
    frames: int = 0
    """Handed out as audio."""
    silence: int = 0
    """Samples of silence between them that were handed out."""
    chunks: int = 0
    segments: int = 0
    begun: list[BegunSegment] = field(default_factory=list)
    """Those segments, for word times."""
    text_chars: int = 0
    """Characters of the text so far."""
    unsaid_chars: int = 0
    """Characters of the text that were left out, estimated where a segment was cut."""
    prefilled_at: float | None = None
    """When its first decoder stream began."""
    last_decoded_at: float | None = None
    chunk_gaps_s: list[float] = field(default_factory=list)
    """From one chunk to the next, where the engine had no reason to wait."""
    switches: tuple[BackendSwitch, ...] = ()
    playback: PlaybackClock = field(default_factory=PlaybackClock)

    @property
    def samples(self) -> int:
        """Samples that were handed out."""
        return self.frames * FRAME_SAMPLES + self.silence

    def note_chunk(self, now: float, frames: int, samples: int, rate: float = 1.0) -> None:
        """A chunk with this many frames and samples was handed out; its frames are played at this rate."""
        if self.last_decoded_at is not None and not self.playback.excused:
            self.chunk_gaps_s.append(now - self.last_decoded_at)
        if samples:
            self.playback.deliver(now, samples / SAMPLE_RATE / (rate if frames else 1.0))
        self.frames, self.chunks, self.last_decoded_at = self.frames + frames, self.chunks + 1, now
        self.silence += samples - frames * FRAME_SAMPLES


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

    def plan_next(self, frames: int, ahead_s: float, most: int, round_s: float) -> None:
        """A chunk was handed out. The next is twice as large if it can be made in time.

        Args:
            frames: of that chunk.
            ahead_s: audio that playback has in hand, that chunk included.
            most: frames of the largest chunk that keeps nobody waiting for long, where there is time for small ones.
            round_s: what the engine needs for a frame of every stream, with its audio; 0 while that is unknown.
        """
        if round_s >= BUSY_SHARE * FRAME_SECONDS:
            fits = 2 * frames
        elif round_s:
            fits = min(most, int((ahead_s - 2 * round_s - SLACK_S) / round_s))  # begun this long before it runs dry
        else:
            fits = 1
        self.target = max(1, min(2 * frames, self.max_frames, fits))


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


class Waker(Protocol):
    """Tells consumers in one event loop, or in one process, of their chunks, all at once."""

    def wake(self, waiting: "Sequence[asyncio.Future[None]]") -> None:
        """Let these go on."""


@dataclass(frozen=True, slots=True)
class LoopWaker:
    """Consumers in an event loop."""

    loop: asyncio.AbstractEventLoop

    def wake(self, waiting: "Sequence[asyncio.Future[None]]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            self.loop.call_soon_threadsafe(_resolve, waiting)


Waiter = tuple[Waker, "asyncio.Future[None] | None"]
"""A consumer, or one of another process, which needs no future."""


class ChunkQueue:
    """A queue of chunks with an end. The first :meth:`finish` decides how the stream ended.

    Args:
        max_untaken_s: from this much audio on it is :meth:`full <is_full>`. That is for whoever fills it to heed.
        on_room: called in the consumer's thread while a full queue is being emptied, until nothing is left.
    """

    def __init__(self, max_untaken_s: float | None = None, on_room: Callable[[], None] = lambda: None) -> None:
        self.reason: FinishReason | None = None
        self.error: Exception | None = None
        self.first_delivered_at: float | None = None
        self._changed = Condition()
        self._chunks: deque[Chunk] = deque()
        self._max_untaken_s, self._on_room = max_untaken_s, on_room
        self.untaken_s = 0.0
        """Seconds of audio that wait here."""
        self._was_full = False
        self._waiters: list[Waiter] = []

    def is_full(self, further_s: float = 0.0, share: float = 1.0) -> bool:
        """The consumer has not taken what it should have, or a ``share`` of that; with ``further_s`` of audio more,
        were it there.
        """
        return self._max_untaken_s is not None and self.untaken_s + further_s >= share * self._max_untaken_s

    def put(self, chunk: Chunk) -> list[Waiter]:
        """Hand a chunk over; dropped when the stream already ended. Threads that wait go on; returns the waiters of
        event loops, to :func:`wake`.
        """
        with self._changed:
            if self.reason is not None:
                return []
            self._chunks.append(chunk)
            self.untaken_s += len(chunk.pcm) / SAMPLE_RATE
            return self._notify()

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        """End the stream; ``False`` when it had ended before. Cancelling drops the chunks that nobody took."""
        with self._changed:
            if self.reason is not None:
                if reason == "cancelled":
                    self._chunks.clear()
                return False
            self.reason, self.error = reason, error
            if reason == "cancelled":
                self._chunks.clear()
            wake(self._notify())
            return True

    def take(self) -> Chunk | None:
        """The next chunk; waits for it. ``None`` after the last one; raises the stream's error there instead."""
        with self._changed:
            self._changed.wait_for(self._settled)
            return self._next()

    async def take_async(self) -> Chunk | None:
        """Return the next chunk like :meth:`take`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._settled():
                    return self._next()
                future: asyncio.Future[None] = loop.create_future()
                waiter: Waiter = LoopWaker(loop), future
                self._waiters.append(waiter)
            try:
                await future
            finally:
                with self._changed, contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)

    def _settled(self) -> bool:
        return bool(self._chunks) or self.reason is not None

    def _next(self) -> Chunk | None:
        if self._chunks:
            now = time.monotonic()
            if self.first_delivered_at is None:
                self.first_delivered_at = now
            chunk = self._pop()
            ended = not self._chunks and self.reason is not None and self.error is None
            return replace(chunk, delivered_at=now, final=chunk.final or ended)
        if self.error is not None:
            raise self.error
        return None

    def _pop(self) -> Chunk:
        chunk = self._chunks.popleft()
        self._was_full = self._was_full or self.is_full()
        self.untaken_s -= len(chunk.pcm) / SAMPLE_RATE
        if self._was_full and not self.is_full():
            self._was_full = bool(self._chunks)
            self._on_room()
        return chunk

    def _notify(self) -> list[Waiter]:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        return waiters


def wake(waiters: Iterable[Waiter]) -> None:
    """Let these go on: an event loop is called once for all of its waiters, since each call wakes its thread."""
    wakers: dict[Waker, list[asyncio.Future[None]]] = {}
    for waker, future in waiters:
        waiting = wakers.setdefault(waker, [])
        if future is not None:
            waiting.append(future)
    for waker, waiting in wakers.items():
        waker.wake(waiting)


def _resolve(futures: "Sequence[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

"""Watermarked chunks: the stage between the engine's chunks and their consumer.

It belongs to the consumer's side, so that no engine waits for it, and that speech which goes on in another engine keeps
its mark.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.speech.outputs import Chunk, FinishReason, StreamEnd
from megatalker.errors import MalformedResultError, MegatalkerError, PluginError, describe_error
from megatalker.plugins.watermark import MarkingStream, WatermarkModel, load_watermark

Samples = NDArray[np.float32]


class HeldFrames:
    """Codes and ends of an utterance's frames, until their audio is handed out.

    Args:
        frames: of the utterance before the first chunk.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        """Handed out."""
        self.held = 0
        """Frames that wait."""
        self._codes: list[NDArray[np.int64]] = []
        self._ends: list[StreamEnd] = []

    def add(self, chunk: Chunk) -> None:
        """Hold the frames of a chunk."""
        self.held += chunk.frames
        self._ends += chunk.ends
        if chunk.frames and chunk.codes is not None:
            self._codes.append(chunk.codes)

    def hand_out(self, chunk: Chunk, frames: int) -> Chunk:
        """Return the chunk as one of the next ``frames`` frames."""
        self._frames, self.held = self._frames + frames, self.held - frames
        ends = tuple(end for end in self._ends if end.frame < self._frames)
        self._ends = self._ends[len(ends) :]
        codes = None
        if frames and self._codes:
            known = np.concatenate(self._codes)
            self._codes, codes = [known[frames:]], known[:frames]
        return replace(chunk, frames=frames, codes=codes, ends=ends)


class ChunkSource(Protocol):
    """The consumer's side of a queue of chunks; see :class:`~megatalker.engine.speech.chunks.ChunkQueue`."""

    @property
    def reason(self) -> FinishReason | None: ...

    @property
    def error(self) -> Exception | None: ...

    @property
    def first_delivered_at(self) -> float | None: ...

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool: ...

    def take(self) -> Chunk | None: ...

    async def take_async(self) -> Chunk | None: ...


class WatermarkStage:
    """Marks the speech of one engine, in threads of its own; each works on one core. They end with the last reference.

    Args:
        name: a watermark, or ``none``.

    Raises:
        SettingsError, PluginError, UnsupportedError: as :func:`~megatalker.plugins.watermark.load_watermark`.
    """

    def __init__(self, name: str) -> None:
        self._model = load_watermark(name)
        self._threads: ThreadPoolExecutor | None = None
        if self._model is not None:
            self._threads = ThreadPoolExecutor(
                thread_name_prefix="megatalker-watermark", initializer=torch.set_num_threads, initargs=(1,)
            )

    def mark(self, chunks: ChunkSource, frames: int) -> ChunkSource:
        """Return these chunks, which begin after ``frames`` of an utterance, marked; the same object where there is no
        watermark.
        """
        if self._model is None or self._threads is None:
            return chunks
        return MarkedChunks(chunks, self._model, self._threads, frames)


class MarkedChunks:
    """The chunks of one utterance, marked; taken from one place.

    A watermark that looks ahead holds frames back: chunks come later, with their codes and ends, and the last one
    carries all that is left. Silence and marks of markup are handed out as they are; the speech before them is marked
    to its end first, and the speech after them anew.
    """

    def __init__(
        self, source: ChunkSource, model: WatermarkModel, threads: ThreadPoolExecutor, frames: int = 0
    ) -> None:
        self._source, self._model, self._threads = source, model, threads
        self._facts = HeldFrames(frames)
        self._stream: MarkingStream | None = None
        self._work: tuple[Chunk | None, Future[Samples]] | None = None
        """The chunk that is being marked: kept, since the consumer may stop waiting and ask again."""
        self._dropped = self._over = False
        self._failure: Exception | None = None
        self._chunks = 0
        """Handed out."""
        self._position: int | None = None
        """Samples of the utterance before the next chunk; ``None`` before the first one."""
        self._silence: Chunk | None = None
        """Without frames: what comes next."""
        self._latest: Chunk | None = None
        self._first_delivered_at: float | None = None

    @property
    def reason(self) -> FinishReason | None:
        return self._source.reason if self._failure is None else "error"

    @property
    def error(self) -> Exception | None:
        return self._failure or self._source.error

    @property
    def first_delivered_at(self) -> float | None:
        return self._first_delivered_at

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        self._dropped = self._dropped or reason == "cancelled"
        return self._source.finish(reason, error)

    def take(self) -> Chunk | None:
        while not (self._over or self._dropped):
            if (silence := self._take_silence()) is not None:
                return silence
            if self._work is None:
                try:
                    chunk = self._source.take()
                except Exception as error:  # of the speech, after the chunks that were made
                    chunk, self._failure = None, error
                self._work = chunk, self._threads.submit(self._mark, chunk)
            with self._told():
                ready = self._work[1].result()
            if (marked := self._cut(ready)) is not None:
                return marked
        self._raise_failure()
        return None

    async def take_async(self) -> Chunk | None:
        """Return the next chunk like :meth:`take`, without blocking the event loop."""
        while not (self._over or self._dropped):
            if (silence := self._take_silence()) is not None:
                return silence
            if self._work is None:
                try:
                    chunk = await self._source.take_async()
                except Exception as error:
                    chunk, self._failure = None, error
                self._work = chunk, self._threads.submit(self._mark, chunk)
            with self._told():
                ready = await asyncio.shield(asyncio.wrap_future(self._work[1]))
            if (marked := self._cut(ready)) is not None:
                return marked
        self._raise_failure()
        return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """End the speech where it cannot be marked: nothing is handed out unmarked."""
        try:
            yield
        except MegatalkerError as error:
            self._over, self._failure = True, error
            raise
        except Exception as error:  # a stranger's plug-in may fail in any way
            self._over = True
            self._failure = PluginError(f"the speech ends, for its watermark failed: {describe_error(error)}")
            raise self._failure from error

    def _raise_failure(self) -> None:
        if self._failure is not None and not self._dropped:
            raise self._failure

    def _mark(self, chunk: Chunk | None) -> Samples:
        """Return what is ready with this chunk, or with the end of the speech."""
        frames = [] if chunk is None or not chunk.frames else list(chunk.pcm.reshape(-1, FRAME_SAMPLES))
        if self._stream is None and frames:
            self._stream = self._model.open()
        parts = []
        if self._stream is not None:
            parts = [self._stream.mark(frame) for frame in frames if not self._dropped]
        last = chunk is None or chunk.final or not chunk.frames
        if last and self._stream is not None:
            stream, self._stream = self._stream, None
            parts.append(stream.finish())
        ready = np.concatenate([np.empty(0, np.float32), *parts])
        most = self._facts.held + len(frames)
        told = len(ready) / FRAME_SAMPLES
        if not self._dropped and (told != int(told) or told > most or (last and told != most)):
            raise MalformedResultError(
                f"the watermark returned {told:g} frames, expected {most}"
                + ("" if last else " at most, a whole number")
            )
        clipped: Samples = np.clip(ready, -1.0, 1.0)
        return clipped

    def _cut(self, ready: Samples) -> Chunk | None:
        """Return the chunk of these samples, ``None`` where there are none."""
        assert self._work is not None, "it was submitted"
        (chunk, _), self._work = self._work, None
        if self._dropped:
            return None
        if chunk is None:
            self._over = True
        else:
            if self._position is None:
                self._position = chunk.sample_offset
            self._facts.add(chunk)
            if chunk.frames:
                self._latest = chunk
            else:
                self._silence = chunk
        frames = len(ready) // FRAME_SAMPLES
        if not frames or self._latest is None:
            return None
        final = self._failure is None and (chunk is None or (chunk.final and self._silence is None))
        return self._hand_out(self._latest, ready, final=final)

    def _take_silence(self) -> Chunk | None:
        silence, self._silence = self._silence, None
        if silence is None:
            return None
        return self._hand_out(silence, silence.pcm, final=silence.final)

    def _hand_out(self, chunk: Chunk, pcm: Samples, *, final: bool) -> Chunk:
        assert self._position is not None, "a chunk has come"
        begin, self._position = self._position, self._position + len(pcm)
        frames = len(pcm) // FRAME_SAMPLES if chunk.frames else 0
        now = time.monotonic()
        self._first_delivered_at = self._first_delivered_at or now
        self._chunks += 1
        marked = replace(chunk, index=self._chunks - 1, pcm=pcm, sample_offset=begin, delivered_at=now, final=final)
        return self._facts.hand_out(marked, frames)

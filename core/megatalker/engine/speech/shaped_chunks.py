"""Shaped chunks: rate and volume that markup asks for, between the engine's chunks and their consumer.

It belongs to the consumer's side, as the watermark does: no engine waits for it, and codes are those of the same text
without it. Times of the engine's audio become times of the consumer's by a :class:`Timeline`.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.engine.speech.joints import silence_after, smooth_beginning
from megatalker.engine.speech.marked_chunks import ChunkSource, HeldFrames
from megatalker.engine.speech.outputs import Chunk, FinishReason
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.prompt.markup.prosody import PLAIN

if TYPE_CHECKING:
    from megatalker.engine.speech.stretching import PitchKeepingStretch

__all__ = ["ShapedChunks", "Timeline"]

Samples = NDArray[np.float32]


class Timeline:
    """Places of the engine's audio in the audio of its consumer, in samples.

    Args:
        made: samples of the engine before the first chunk.
        heard: samples of the consumer before it.
    """

    def __init__(self, made: int, heard: int) -> None:
        self._made, self._heard, self._rates, self._inverse = [made], [heard], [1.0], [1.0]

    def turn(self, made: int, heard: int, rate: float) -> None:
        """From this place on, the audio is played at this rate."""
        if rate != 1.0 or self._rates[-1] != 1.0:
            self._made.append(made)
            self._heard.append(heard)
            self._rates.append(rate)
            self._inverse.append(1 / rate)

    def heard_at(self, made: float) -> float:
        """Return the consumer's place of one of the engine."""
        return _place(made, self._made, self._heard, self._inverse)

    def made_at(self, heard: float) -> float:
        """Return the engine's place of one of the consumer."""
        return _place(heard, self._heard, self._made, self._rates)


def _place(found: float, begins: Sequence[int], others: Sequence[int], factors: Sequence[float]) -> float:
    """Return the place in the other audio, which goes on by a factor from each beginning to the next."""
    at = max(0, bisect_right(begins, found) - 1)
    place = others[at] + (found - begins[at]) * factors[at]
    return min(place, others[at + 1]) if at + 1 < len(others) else place


class ShapedChunks:
    """The chunks of one utterance, at the rates and volumes that markup asks for; taken from one place.

    Speech at another rate comes a frame or two later. Pauses keep their length. Where the prosody changes, the wave
    begins at the sample before within 2 ms, so that nothing clicks; all other speech is as the engine made it.

    Args:
        source: the engine's chunks.
        frames: of the utterance before the first of them.
        heard: samples that the consumer had before them; ``None``: as many as the engine had made.
    """

    def __init__(self, source: ChunkSource, frames: int = 0, heard: int | None = None) -> None:
        self._source, self._facts, self._before = source, HeldFrames(frames), heard
        self._timeline: Timeline | None = None
        self._made = self._heard = 0
        """Samples of the engine that came, and those that were made of them, or will be."""
        self._prosody = PLAIN
        self._stretch: PitchKeepingStretch | None = None
        self._waiting: list[Samples] = []
        """Shaped, for a chunk with the frame that they end in."""
        self._stretched = self._run = self._told = 0
        """Samples that came of the stretch; frames that it was given; those of them that were handed out."""
        self._last, self._spoken = 0.0, PLAIN
        """The last sample that was handed out, and the prosody of the last speech."""
        self._begins = False
        """Something stands between that speech and what comes next."""
        self._latest: Chunk | None = None
        self._ready: deque[Chunk] = deque()
        self._arrived: list[tuple[Samples, float]] = []
        self._chunks, self._handed = 0, 0
        self._over = self._dropped = False
        self._failure: Exception | None = None
        self._first_delivered_at: float | None = None

    @property
    def reason(self) -> FinishReason | None:
        return self._source.reason

    @property
    def error(self) -> Exception | None:
        return self._source.error

    @property
    def first_delivered_at(self) -> float | None:
        return self._first_delivered_at

    @property
    def further_samples(self) -> int:
        """Samples that prosody has added until now, or taken away."""
        return self._heard - self._made

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        self._dropped = self._dropped or reason == "cancelled"
        return self._source.finish(reason, error)

    def take(self) -> Chunk | None:
        while not (self._ready or self._over or self._dropped):
            try:
                chunk = self._source.take()
            except Exception as error:  # of the speech, after the chunks that were made
                chunk, self._failure = None, error
            self._shape(chunk)
        return self._next()

    async def take_async(self) -> Chunk | None:
        """Return the next chunk like :meth:`take`, without blocking the event loop."""
        while not (self._ready or self._over or self._dropped):
            try:
                chunk = await self._source.take_async()
            except Exception as error:
                chunk, self._failure = None, error
            self._shape(chunk)
        return self._next()

    def take_arrived(self) -> list[tuple[Samples, float]]:
        """Return the engine's audio that came since this was last asked, each with its beginning in seconds."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def made_s(self, heard_s: float) -> float:
        """Return the moment of the engine's audio that the consumer hears at this one."""
        return heard_s if self._timeline is None else self._timeline.made_at(heard_s * SAMPLE_RATE) / SAMPLE_RATE

    def words_heard(self, words: Iterable[SpokenWord]) -> Iterator[SpokenWord]:
        """Yield words of the engine's audio with the consumer's times."""
        for word in words:
            if self._timeline is None:
                yield word
            else:
                begins, ends = (
                    self._timeline.heard_at(at_s * SAMPLE_RATE) / SAMPLE_RATE for at_s in (word.begins_s, word.ends_s)
                )
                yield replace(word, begins_s=begins, ends_s=ends)

    def _next(self) -> Chunk | None:
        if self._dropped:
            return None
        if self._ready:
            now = time.monotonic()
            self._first_delivered_at = self._first_delivered_at or now
            return replace(self._ready.popleft(), delivered_at=now)
        if self._failure is not None:
            raise self._failure
        return None

    # ---- shaping

    def _shape(self, chunk: Chunk | None) -> None:
        """Put what is ready with this chunk, or with the end of the speech, into ``_ready``."""
        if chunk is None:
            self._over = True
            self._end_run(final=self._failure is None)
            return
        if self._timeline is None:
            self._made = chunk.sample_offset
            self._heard = self._handed = self._made if self._before is None else self._before
            self._timeline = Timeline(self._made, self._heard)
        self._arrived.append((chunk.pcm, self._made / SAMPLE_RATE))
        says_prosody = not (chunk.frames or len(chunk.pcm) or chunk.marks)
        if chunk.prosody != self._prosody or not chunk.frames:
            self._end_run(final=says_prosody and chunk.final)
            self._begins = True
        self._prosody = chunk.prosody
        self._facts.add(chunk)
        if chunk.frames:
            self._latest = chunk
            self._speech(chunk)
        elif not says_prosody:
            pcm = chunk.pcm if self._spoken == PLAIN else silence_after(self._last, len(chunk.pcm))
            begins = self._heard
            marks = tuple(replace(mark, sample=mark.sample - self._made + begins) for mark in chunk.marks)
            self._count(len(pcm), len(pcm))
            self._put(replace(chunk, marks=marks), pcm, 0, final=chunk.final)

    def _speech(self, chunk: Chunk) -> None:
        rate = self._prosody.rate
        if rate == 1.0:
            self._count(len(chunk.pcm), len(chunk.pcm))
            self._put(chunk, self._shaped(chunk.pcm), chunk.frames, final=chunk.final)
            return
        if self._stretch is None:
            from megatalker.engine.speech.stretching import (
                PitchKeepingStretch,  # the reader of the markup has looked for it
            )

            assert self._timeline is not None, "a chunk has come"
            self._stretch = PitchKeepingStretch(rate)
            self._stretched = self._run = self._told = 0
            self._timeline.turn(self._made, self._heard, rate)
        fresh = self._stretch.process(chunk.pcm)
        self._stretched, self._run = self._stretched + len(fresh), self._run + chunk.frames
        self._made += len(chunk.pcm)
        self._heard += round(self._run * FRAME_SAMPLES / rate) - round(
            (self._run - chunk.frames) * FRAME_SAMPLES / rate
        )
        self._waiting.append(fresh)
        if chunk.final:
            self._end_run(final=True)
            return
        done = min(int(self._stretched * rate) // FRAME_SAMPLES, self._run - 1)  # one is left for the end
        if done > self._told:
            self._put_waiting(chunk, done - self._told, final=False)

    def _end_run(self, *, final: bool) -> None:
        """Hand out the rest of speech at one rate."""
        stretch, self._stretch = self._stretch, None
        if stretch is None or self._latest is None or self._timeline is None:
            return
        self._waiting.append(stretch.finish())
        self._put_waiting(self._latest, self._run - self._told, final=final)
        self._timeline.turn(self._made, self._heard, 1.0)

    def _put_waiting(self, chunk: Chunk, frames: int, *, final: bool) -> None:
        pcm, self._waiting = np.concatenate(self._waiting), []
        self._told += frames
        self._put(chunk, self._shaped(pcm), frames, final=final)

    def _shaped(self, pcm: Samples) -> Samples:
        """Return this speech at the volume that it has. It begins at the sample before, where one of both is not as the
        engine made it.
        """
        smooth = self._begins and (self._prosody != PLAIN or self._spoken != PLAIN)
        self._begins, self._spoken = False, self._prosody
        if self._prosody.gain != 1.0:
            pcm = np.clip(pcm * np.float32(self._prosody.gain), -1.0, 1.0)
        if smooth:
            pcm = pcm.copy()
            smooth_beginning(pcm, self._last)
        return pcm

    def _count(self, made: int, heard: int) -> None:
        self._made, self._heard = self._made + made, self._heard + heard

    def _put(self, chunk: Chunk, pcm: Samples, frames: int, *, final: bool) -> None:
        begins, self._handed = self._handed, self._handed + len(pcm)
        self._chunks += 1
        if len(pcm):
            self._last = float(pcm[-1])
        shaped = replace(chunk, index=self._chunks - 1, pcm=pcm, sample_offset=begins, final=final)
        self._ready.append(self._facts.hand_out(shaped, frames))

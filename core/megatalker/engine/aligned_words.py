"""Word times from an aligner: once a segment is over, its words are looked for in its audio.

That is done in threads on the consumer's side, so that neither the engine nor an event loop waits for it, and no audio
is held back. Where it fails or comes too late, the words of the segment keep their estimates.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from threading import BoundedSemaphore, Thread, current_thread

import numpy as np
import torch
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.interpreter import at_exit, end_thread
from megatalker.engine.speech.word_times import BegunSegment, Pace, Paces, SpokenWord, WordClock
from megatalker.errors import MalformedResultError, describe_error
from megatalker.plugins.aligner import Aligner, SpokenSegment, load_aligner
from megatalker.prompt.languages import name_of

logger = logging.getLogger(__name__)

THREADS = 2  # not tuned: a bound of work
MOST_WAITING = 64  # not tuned: a bound of memory
"""Segments of one engine that wait for an aligner or are with it; the words of others keep their estimates."""
LONGEST_S = 120.0  # not tuned: a bound of memory
"""Audio that a stream keeps for an aligner, in seconds; a longer segment keeps its estimates."""
PATIENCE_S = 2.0  # not tuned: a bound of waiting
"""How long the end of an iteration waits for an aligner, which has been busy with all but the last segment before."""
_TOLERANCE_S = 0.05  # not tuned: a bound of what is believed
"""How far beyond the audio an aligner's frames may reach."""


Alignments = Sequence[Future[list[SpokenWord]]]
"""Work that ends with the words of a segment."""


def open_paces(aligner: str, language: str) -> Paces:
    """Return the clocks of one engine.

    Args:
        aligner: as the setting of this name.
        language: of requests that name none.

    Raises:
        SettingsError, PluginError, UnsupportedError: as :func:`~megatalker.plugins.aligner.load_aligner`.
    """
    model = load_aligner(aligner)
    if model is None:
        return Paces(lambda pace, _: WordClock(pace))
    threads = AlignmentThreads(aligner, model)
    return Paces(lambda pace, asked: AlignedClock(pace, threads, asked or language))


class AlignmentThreads:
    """Threads in which one engine's segments are aligned, each on one core. They end with the last reference."""

    def __init__(self, name: str, aligner: Aligner) -> None:
        self._name, self._aligner = name, aligner
        self._room = BoundedSemaphore(MOST_WAITING)
        threads = list[Thread]()
        self._threads = ThreadPoolExecutor(THREADS, "megatalker-aligner", _begin, (threads,))
        at_exit(partial(_leave, weakref.ref(self._threads), threads))

    def submit(
        self, segment: SpokenSegment, estimates: list[SpokenWord], begins_s: float
    ) -> Future[list[SpokenWord]] | None:
        """Look for the words of a segment that begins at ``begins_s``; ``None``: too many segments wait.

        The result has the times that were found, or the estimates; it raises nothing.
        """
        if not self._room.acquire(blocking=False):
            self._complain(segment, f"{MOST_WAITING} segments wait for it")
            return None
        work = self._threads.submit(self._align, segment, estimates, begins_s)
        work.add_done_callback(lambda _: self._room.release())
        return work

    def _align(self, segment: SpokenSegment, estimates: list[SpokenWord], begins_s: float) -> list[SpokenWord]:
        try:
            times = _checked(self._aligner.align(segment), len(estimates), len(segment.samples) / SAMPLE_RATE)
        except Exception as error:  # a stranger's plug-in may fail in any way
            self._complain(segment, describe_error(error))
            return estimates
        return [
            replace(word, begins_s=begins_s + begin, ends_s=begins_s + end, estimated=False)
            for word, (begin, end) in zip(estimates, times, strict=True)
        ]

    def _complain(self, segment: SpokenSegment, why: str) -> None:
        logger.warning(
            "aligner %r: the times of %d words stay estimates, beginning with %.40r: %s",
            self._name,
            len(segment.words),
            segment.text,
            why,
        )


def _begin(threads: list[Thread]) -> None:
    torch.set_num_threads(1)
    threads.append(current_thread())


def _leave(pool: Callable[[], ThreadPoolExecutor | None], threads: Sequence[Thread]) -> None:
    """Python would wait without end for an aligner that hangs."""
    if (used := pool()) is not None:
        used.shutdown(wait=False, cancel_futures=True)
    for thread in threads:
        thread.join(PATIENCE_S)
        end_thread(thread)


class AlignedClock(WordClock):
    """Tells the words of a segment once it is over and they were found in its audio."""

    def __init__(self, pace: Pace, threads: AlignmentThreads, language: str) -> None:
        super().__init__(pace)
        self._threads = threads
        self._language = name_of(language) or (None if language == "auto" else language.lower())
        self._aligning = True
        self._audio: list[NDArray[np.float32]] = []
        self._audio_begin = self._audio_end = 0
        """Samples of the utterance before the audio that is kept, and before its end."""
        self._over = 0
        """Segments that are over."""
        self._laid_out: deque[tuple[list[SpokenWord], Future[list[SpokenWord]] | None]] = deque()
        """Estimates for segments that are over, and the work on better ones."""

    def hear(self, pcm: NDArray[np.float32], at_s: float, segments: Sequence[BegunSegment] = ()) -> None:
        super().hear(pcm, at_s)
        if not self._aligning:
            return
        self._keep(pcm, round(at_s * SAMPLE_RATE))
        while self._over + 1 < len(segments):
            end_s = segments[self._over + 1].silent_from_s
            if round(end_s * SAMPLE_RATE) > self._audio_end:
                break
            self._submit(super().due(end_s, segments), segments[self._over], end_s)
            self._over += 1

    def due(self, audio_s: float, segments: Sequence[BegunSegment], *, begun: bool = False) -> list[SpokenWord]:
        """The words of the segments that are over and aligned. With ``begun`` it is estimates from now on: a word that
        has begun cannot wait for the end of its segment.
        """
        if begun:
            self.stop_aligning()
        if not self._aligning:
            return self._all_laid_out() + super().due(audio_s, segments, begun=begun)
        found = []
        while self._laid_out and ((work := self._laid_out[0][1]) is None or work.done()):
            found += _words(*self._laid_out.popleft())
        return found

    def awaited(self, audio_s: float, segments: Sequence[BegunSegment], *, complete: bool) -> Alignments:
        words = super().rest(audio_s, segments, complete=complete)
        if not complete or not segments or not self._aligning:
            self._laid_out.append((words, None))
        else:
            self._submit(words, segments[-1], audio_s)
        self._audio = []
        return [work for _, work in self._laid_out if work is not None]

    def rest(self, audio_s: float, segments: Sequence[BegunSegment], *, complete: bool) -> list[SpokenWord]:
        """The words that are left; estimates where :meth:`awaited` was not waited for."""
        self.awaited(audio_s, segments, complete=complete)
        return self._all_laid_out()

    def stop_aligning(self) -> None:
        self._aligning, self._audio = False, []

    def _all_laid_out(self) -> list[SpokenWord]:
        found = []
        while self._laid_out:
            found += _words(*self._laid_out.popleft())
        return found

    def _submit(self, words: list[SpokenWord], segment: BegunSegment, end_s: float) -> None:
        """Begin the work on the words of a segment that is over, and forget the audio before ``end_s``."""
        begin, end = (round(seconds * SAMPLE_RATE) - self._audio_begin for seconds in (segment.begins_s, end_s))
        audio = np.concatenate([np.empty(0, np.float32), *self._audio])
        self._audio, self._audio_begin = [audio[end:]], self._audio_begin + end
        if not words:
            return
        work = None
        if 0 <= begin < end and not segment.cut and words[0].begins_s >= segment.begins_s:
            text = "".join(word.before + word.text for word in words).strip()
            said = SpokenSegment(text, tuple(word.text for word in words), self._language, audio[begin:end])
            work = self._threads.submit(said, words, segment.begins_s)
        self._laid_out.append((words, work))

    def _keep(self, pcm: NDArray[np.float32], begin: int) -> None:
        kept = self._audio_end - self._audio_begin
        if not self._audio or kept > LONGEST_S * SAMPLE_RATE:
            self._audio, self._audio_begin = [], begin
        self._audio.append(pcm)
        self._audio_end = begin + len(pcm)


def _words(estimates: list[SpokenWord], work: Future[list[SpokenWord]] | None) -> list[SpokenWord]:
    """Return what was found out about a segment so far."""
    return work.result() if work is not None and not work.cancel() and work.done() else estimates


def wait_a_while(work: Alignments) -> None:
    """Wait until all is done, or for :data:`PATIENCE_S`."""
    wait(work, PATIENCE_S)


async def wait_a_while_async(work: Alignments) -> None:
    """Wait like :func:`wait_a_while`, without blocking the event loop; what is late is cancelled."""
    if work:
        _, late = await asyncio.wait(list(map(asyncio.wrap_future, work)), timeout=PATIENCE_S)
        for one in late:
            one.cancel()


def _checked(times: Sequence[tuple[float, float]], words: int, seconds: float) -> list[tuple[float, float]]:
    found = np.asarray(times, np.float64)
    if found.shape != (words, 2):
        raise MalformedResultError(f"it returned an array of shape {list(found.shape)}, expected [{words}, 2]")
    begins, ends = found.T
    inside = (begins >= 0).all() and (ends <= seconds + _TOLERANCE_S).all()
    if not (np.isfinite(found).all() and inside and (begins <= ends).all() and (np.diff(begins) >= 0).all()):
        raise MalformedResultError(f"it returned times that are not in order or not within 0 and {seconds:.2f} s")
    return [(float(begin), float(end)) for begin, end in found.clip(0.0, seconds)]

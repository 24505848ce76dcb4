"""The caller's half of an utterance: its text goes in, its chunks come out."""

import asyncio
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.aligned_words import Alignments, wait_a_while, wait_a_while_async
from megatalker.engine.commands import UtteranceLink
from megatalker.engine.speech.marked_chunks import ChunkSource, WatermarkStage
from megatalker.engine.speech.outputs import BackendSwitch, Chunk, Continuation, FinishReason, Pieces, StreamFacts
from megatalker.engine.speech.shaped_chunks import ShapedChunks
from megatalker.engine.speech.word_times import SpokenWord, WordClock
from megatalker.errors import InvalidRequestError, MarkupError, UnsupportedError
from megatalker.prompt.markup.controls import without_controls
from megatalker.prompt.text import TextChecker


class ChunkStream(ABC):
    """The consumer's half of an utterance, wherever it is made: an iterator of chunks for threads and event loops.

    Iterate over it, with ``for`` or ``async for``, from one place; every other method may be called from any thread.
    The iteration raises what went wrong after the chunks that were made. Leaving a ``with`` or ``async with`` block
    cancels what is not finished. A ``for`` in a thread that runs an event loop warns (``RuntimeWarning``): it blocks
    the loop.
    """

    def __init__(self, chunks: ChunkSource) -> None:
        self._chunks, self._process = chunks, os.getpid()
        self._warned, self._taken_samples, self._over = False, 0, False

    @abstractmethod
    def take_words(self, *, begun: bool = False) -> list[SpokenWord]:
        """Words that end within the chunks taken so far, without those returned before; at the end of the iteration the
        rest of those that were spoken. Their times are estimates; with the setting ``aligner`` they are found in the
        audio, and the words of a segment of text come once it is over. Nothing unless the option ``word_times`` is on.

        ``begun``: words that begin within these chunks, where that is known; their ends are guesses. No aligner is
        waited for.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End now: chunks not yet taken are dropped, the iteration ends, the backend's rows are free within a frame.

        Does nothing when the stream has ended.
        """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        require_process(self._process)
        self._warn_of_blocking()
        chunk = self._chunks.take()
        if chunk is None:
            wait_a_while(self._awaited_at_end())
            raise StopIteration
        self._note_taken(chunk)
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        require_process(self._process)
        chunk = await self._chunks.take_async()
        if chunk is None:
            await wait_a_while_async(self._awaited_at_end())
            raise StopAsyncIteration
        self._note_taken(chunk)
        return chunk

    def read_all(self) -> NDArray[np.float32]:
        """Wait for the rest of the speech: ``[samples]`` at 24 kHz."""
        chunks = [chunk.pcm for chunk in self]
        return np.concatenate(chunks) if chunks else np.empty(0, np.float32)

    def pieces(self, seconds: float) -> Pieces:
        """The speech in pieces of this length, such as 0.04, to iterate over instead of the stream.

        Raises:
            InvalidRequestError: the length does not divide a frame (0.08 s).
        """
        return Pieces(self, self, seconds)

    async def aclose(self) -> None:
        """Do the same as :meth:`cancel`, for ``contextlib.aclosing``."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further chunk is made; ``None`` while there may be one. Chunks may still wait to be taken."""
        return self._chunks.reason

    @property
    def error(self) -> Exception | None:
        """The error that ended it, when ``finish_reason`` is ``error``; the iteration raises it."""
        return self._chunks.error

    def _note_taken(self, chunk: Chunk) -> None:
        self._taken_samples += len(chunk.pcm)

    def _awaited_at_end(self) -> Alignments:
        """Note that the iteration has ended; return the work that it waits for, a bounded time."""
        self._over = True
        return ()

    @property
    def _taken_s(self) -> float:
        """Seconds of audio that the consumer has taken."""
        return self._taken_samples / SAMPLE_RATE

    def _warn_of_blocking(self) -> None:
        if self._warned:
            return
        self._warned = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        warnings.warn(
            "a plain loop over speech blocks the event loop that runs in this thread until the speech has ended; "
            "use 'async for', or read it in another thread",
            RuntimeWarning,
            stacklevel=3,
        )


class SpeechStream(ChunkStream):
    """Speech while it is made. Made by :meth:`Engine.speak <megatalker.engine.Engine.speak>`.

    As :class:`ChunkStream`. The iteration raises ``BackendFaultError`` when no backend could go on, and
    ``EngineClosedError`` when the engine was closed, both after the chunks that were made. Dropping the last reference
    cancels what is not finished, too.
    """

    def __init__(
        self,
        link: UtteranceLink,
        text_checker: TextChecker | None,
        keep_alive: object,
        words: WordClock | None = None,
        after: Continuation | None = None,
        watermark: WatermarkStage | None = None,
        shaped: bool = False,
    ) -> None:
        """``text_checker`` checks incremental text, and is ``None`` when the text was given at once. ``words`` holds
        that text, where word times are wanted. ``after``: what another engine has said. ``watermark`` marks the chunks.
        ``shaped``: the text may ask for prosody.
        """
        known = 0 if after is None else len(after.codes)
        chunks = link.chunks if watermark is None else watermark.mark(link.chunks, known)
        heard = None if after is None else after.heard
        self._shaping = ShapedChunks(chunks, known, heard) if shaped else None
        super().__init__(chunks if self._shaping is None else self._shaping)
        if after is not None:
            self._taken_samples = after.samples if heard is None else heard
        self._link, self._text_checker, self._progress = link, text_checker, link.progress
        self._keep_alive = keep_alive
        self._words = words
        self._checking, self._estimating = Lock(), Lock()
        """The check of a text may take a second; times of words are asked for meanwhile, and have their own lock."""
        self._ignored_chars, self._cancelled = 0, False
        self._finalizer = weakref.finalize(self, link.cancel)
        self._finalizer.atexit = False

    # ---- text

    def feed(self, text: str) -> None:
        """Append a piece of text, such as a word of a language model's answer. When the stream has ended it is not
        spoken, and counts in ``facts().unsaid_chars`` unless the stream was cancelled.

        A refused piece ends nothing: it is left out, and the pieces before and after it are spoken.

        Raises:
            MarkupError: markup is faulty. That ends the stream, which raises the same error after its chunks.
            InvalidRequestError: the stream was opened with its whole text or was told to finish, the piece is no text,
                or all pieces together exceed ``max_text_chars``. With ``clean_text=False`` also where the piece cannot
                be spoken.
        """
        require_process(self._process)
        with self._checking:
            if self._text_checker is None:
                raise InvalidRequestError("this stream has all its text; open one with speak(None) to feed text to it")
            if isinstance(self.error, MarkupError):
                self._ignored_chars += len(text)
                return
            try:
                ready = self._text_checker.check(text)
            except MarkupError as error:  # nothing that follows can be understood
                self._fail(error)
                raise
            if self.finish_reason == "cancelled":
                return
            self._progress.text_chars += len(text)
            if self.finish_reason is None:
                self._feed(ready)
            else:
                self._ignored_chars += len(text)

    def finish(self) -> None:
        """The text is complete: say what is left, then end. May be called again; raises ``MarkupError`` as
        :meth:`feed`.
        """
        with self._checking:
            if self._text_checker is not None:
                checker, self._text_checker = self._text_checker, None
                if isinstance(self.error, MarkupError):
                    return
                try:
                    self._feed(checker.finish())
                except MarkupError as error:
                    self._fail(error)
                    raise
                self._link.finish_text()
                if self._words is not None:
                    with self._estimating:
                        self._words.end_text(self._spoken_s)

    def _note_taken(self, chunk: Chunk) -> None:
        arrived = [(chunk.pcm, self._taken_s)] if self._shaping is None else self._shaping.take_arrived()
        if self._words is not None:
            with self._estimating:
                for pcm, at_s in arrived:
                    self._words.hear(pcm, at_s, self._progress.begun)
        super()._note_taken(chunk)

    def _awaited_at_end(self) -> Alignments:
        over = self._over
        super()._awaited_at_end()
        if self._words is None or over or self.finish_reason == "cancelled":
            return ()
        with self._estimating:
            return self._words.awaited(self._spoken_s, self._progress.begun, complete=self.finish_reason == "eos")

    def take_words(self, *, begun: bool = False) -> list[SpokenWord]:
        if self._words is None:
            return []
        with self._estimating:
            if self._over and self.finish_reason != "cancelled":
                words = self._words.rest(self._spoken_s, self._progress.begun, complete=self.finish_reason == "eos")
            else:
                if self._cancelled or self.finish_reason in ("cancelled", "error"):
                    self._words.stop_aligning()
                words = self._words.due(self._spoken_s, self._progress.begun, begun=begun)
            return words if self._shaping is None else list(self._shaping.words_heard(words))

    @property
    def _spoken_s(self) -> float:
        """Seconds of the engine's audio in what the consumer has taken."""
        return self._taken_s if self._shaping is None else self._shaping.made_s(self._taken_s)

    def _feed(self, ready: str) -> None:
        if ready:
            self._link.feed(ready)
            if self._words is not None:
                spoken = without_controls(ready)
                with self._estimating:
                    self._words.feed(spoken, self._spoken_s)

    def _fail(self, error: Exception) -> None:
        if self._chunks.finish("error", error):
            self._link.cancel()

    # ---- end

    def cancel(self) -> None:
        self._cancelled = True
        if self._process == os.getpid() and self._chunks.finish("cancelled"):
            self._link.cancel()

    # ---- facts

    @property
    def seed(self) -> int:
        """The seed in use; the same request with this seed gives the same codes."""
        return self._progress.seed

    @property
    def backend(self) -> str:
        """Name of the talker backend that speaks now."""
        return self._progress.backend

    @property
    def switches(self) -> tuple[BackendSwitch, ...]:
        """Moves to other backends, oldest first."""
        return self._progress.switches

    @property
    def text_chars(self) -> int:
        """Characters of the text so far."""
        return self._progress.text_chars

    @property
    def chunk_gaps_s(self) -> tuple[float, ...]:
        """Seconds from each chunk to the next, when the engine had them; without those for which it waited for text or
        for the consumer.
        """
        return tuple(self._progress.chunk_gaps_s)

    @property
    def prefilled_at(self) -> float | None:
        """When the prompt had been read, in seconds of the monotonic clock."""
        return self._progress.prefilled_at

    @property
    def first_delivered_at(self) -> float | None:
        """When the consumer took the first chunk, as above."""
        return self._chunks.first_delivered_at

    def facts(self) -> StreamFacts:
        """Figures so far."""
        progress, first = self._progress, self._chunks.first_delivered_at
        audio_s = (progress.samples + (0 if self._shaping is None else self._shaping.further_samples)) / SAMPLE_RATE
        last = progress.last_decoded_at
        return StreamFacts(
            backend=progress.backend,
            codec=progress.codec,
            seed=progress.seed,
            finish_reason=self.finish_reason,
            frames=progress.frames,
            chunks=progress.chunks,
            segments=progress.segments,
            audio_s=audio_s,
            queue_wait_s=None if progress.prefilled_at is None else progress.prefilled_at - progress.requested_at,
            ttfc_s=None if first is None else first - progress.requested_at,
            rtf=None if last is None or not audio_s else (last - progress.requested_at) / audio_s,
            underruns=progress.playback.underruns,
            switches=progress.switches,
            unsaid_chars=progress.unsaid_chars + self._ignored_chars,
        )


def require_process(process: int) -> None:
    """Engines and streams belong to the process that made them.

    Raises:
        UnsupportedError: this is another process, such as a forked child.
    """
    if process != os.getpid():
        raise UnsupportedError(
            f"this belongs to process {process} and was inherited by its forked child {os.getpid()}, where the threads "
            "that make speech do not exist; open an engine in the child, or start it with the method 'spawn'"
        )

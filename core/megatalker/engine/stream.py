"""What a caller holds of an utterance: an iterator of chunks, for threads and for event loops alike."""

import time
import weakref
from queue import SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from megatalker.engine.commands import Cancel, Command, Feed, FinishText
from megatalker.engine.facts import BackendSwitch, Chunk, FinishReason, StreamFacts
from megatalker.engine.requests import TextIntake
from megatalker.engine.session import Session
from megatalker.errors import InvalidRequestError
from megatalker.model_config import FRAME_SECONDS


class SpeechStream:
    """Speech while it is made. Made by :meth:`Engine.speak <megatalker.engine.Engine.speak>`.

    Iterate over it, with ``for`` or ``async for``, from one place; every other method may be called from any thread.
    The iteration raises ``BackendFaultError`` when no backend could go on, and ``EngineClosedError`` when the engine
    was closed, both after the chunks that were made. Leaving a ``with`` or ``async with`` block, and dropping the last
    reference, cancel what is not finished.
    """

    def __init__(
        self,
        session: Session,
        commands: "SimpleQueue[Command]",
        intake: TextIntake | None,
        keep_alive: object,
    ) -> None:
        """``intake`` checks pieces of incremental text, and is ``None`` when the text was given at once."""
        self._session, self._commands, self._intake = session, commands, intake
        self._record, self._mailbox = session.record, session.mailbox
        self._keep_alive = keep_alive
        self._feeding = Lock()
        self._finalizer = weakref.finalize(self, commands.put, Cancel(session))
        self._finalizer.atexit = False

    # ---- text

    def feed(self, text: str) -> None:
        """Append a piece of text, such as a word of a language model's answer; ignored when the stream has ended.

        Raises:
            InvalidRequestError: the stream was opened with its whole text or was told to finish, the piece cannot be
                spoken, or all pieces together exceed ``max_text_chars``.
        """
        with self._feeding:
            if self._intake is None:
                raise InvalidRequestError("this stream has all its text; open one with speak(None) to feed text to it")
            self._intake.check(text)
            if text and self.finish_reason is None:
                self._commands.put(Feed(self._session, text, time.monotonic()))

    def finish(self) -> None:
        """The text is complete: say what is left, then end. May be called again."""
        with self._feeding:
            if self._intake is not None:
                self._intake = None
                self._commands.put(FinishText(self._session))

    # ---- audio

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._mailbox.take()
        if chunk is None:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._mailbox.take_async()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def read_all(self) -> NDArray[np.float32]:
        """Wait for the rest of the speech: ``[samples]`` at 24 kHz."""
        chunks = [chunk.pcm for chunk in self]
        return np.concatenate(chunks) if chunks else np.empty(0, np.float32)

    # ---- end

    def cancel(self) -> None:
        """End now: chunks not yet taken are dropped, the iteration ends, the backend's rows are free within a frame.

        Does nothing when the stream has ended.
        """
        if self._mailbox.finish("cancelled"):
            self._commands.put(Cancel(self._session))

    async def aclose(self) -> None:
        """As :meth:`cancel`, for ``contextlib.aclosing``."""
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

    # ---- facts

    @property
    def seed(self) -> int:
        """The seed in use; the same request with this seed gives the same codes."""
        return self._record.seed

    @property
    def backend(self) -> str:
        """Name of the talker backend that speaks now."""
        return self._record.backend

    @property
    def switches(self) -> tuple[BackendSwitch, ...]:
        """Moves to other backends, oldest first."""
        return self._record.switches

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further chunk is made; ``None`` while there may be one. Chunks may still wait to be taken."""
        return self._mailbox.reason

    @property
    def error(self) -> Exception | None:
        """What went wrong, when ``finish_reason`` is ``error``; the iteration raises it."""
        return self._mailbox.error

    def facts(self) -> StreamFacts:
        """Figures so far."""
        record, first = self._record, self._mailbox.first_delivered_at
        audio_s = record.frames * FRAME_SECONDS
        last = record.last_decoded_at
        return StreamFacts(
            backend=record.backend,
            codec=record.codec,
            seed=record.seed,
            finish_reason=self.finish_reason,
            frames=record.frames,
            chunks=record.chunks,
            segments=record.segments,
            audio_s=audio_s,
            ttfc_s=None if first is None else first - record.requested_at,
            rtf=None if last is None else (last - record.requested_at) / audio_s,
            underruns=record.playback.underruns,
            switches=record.switches,
        )

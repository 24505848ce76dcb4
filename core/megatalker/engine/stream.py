"""What a caller holds of an utterance: its text goes in, its chunks come out."""

import time
import weakref
from queue import SimpleQueue
from threading import Lock

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.commands import Cancel, Command, Feed, FinishText
from megatalker.engine.facts import BackendSwitch, StreamFacts
from megatalker.engine.listening import Listening
from megatalker.engine.requests import TextIntake
from megatalker.engine.session import Session
from megatalker.errors import InvalidRequestError


class SpeechStream(Listening):
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
        super().__init__(session.mailbox)
        self._session, self._commands, self._intake = session, commands, intake
        self._record = session.record
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

    # ---- end

    def cancel(self) -> None:
        if self._mailbox.finish("cancelled"):
            self._commands.put(Cancel(self._session))

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

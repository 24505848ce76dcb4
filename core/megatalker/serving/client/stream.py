"""The stream of an utterance that a server speaks, as its caller holds it."""

import time
import weakref
from threading import Lock

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.outputs import BackendSwitch, StreamFacts
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.engine.stream import ChunkStream
from megatalker.errors import InvalidRequestError
from megatalker.prompt.text import TextChecker, require_text
from megatalker.serving.client.session import RemoteSession
from megatalker.serving.protocol.messages import Finish, Text


class RemoteStream(ChunkStream):
    """Speech while a server makes it. Made by :meth:`RemoteEngine.speak`; used like
    :class:`~megatalker.engine.SpeechStream`.

    No method but the iteration waits. The iteration raises what the server reports, as the same error classes, and
    ``ConnectionFailedError`` when the server cannot be reached, stops answering or goes away.
    """

    def __init__(self, session: RemoteSession, checker: TextChecker | None, keep_alive: object) -> None:
        """``checker``: of pieces that the server does not clean."""
        super().__init__(session.chunks)
        self._checker = checker
        self._session, self._keep_alive = session, keep_alive
        self._feeding = Lock()
        self._ignored_chars = 0
        self._finalizer = weakref.finalize(self, session.cancel)
        self._finalizer.atexit = False

    def feed(self, text: str) -> None:
        """Append a piece of text. When the stream has ended it is not spoken, and counts in ``facts().unsaid_chars``
        unless the stream was cancelled.

        A piece that only the server can know to be wrong is left out, with a warning in the log; the rest is spoken.

        Raises:
            InvalidRequestError: the stream was opened with its whole text or was told to finish, or this is no text;
                with ``clean_text=False`` also a NUL character or half a surrogate pair.
        """
        with self._feeding:
            if self._session.text_complete:
                raise InvalidRequestError("this stream has all its text; open one with speak(None) to feed text to it")
            piece = require_text(text) if self._checker is None else self._checker.check(text)
            if self.finish_reason is not None:
                self._ignored_chars += 0 if self.finish_reason == "cancelled" else len(piece)
            elif piece:
                self._session.send(Text(id=self._session.id, text=piece))

    def finish(self) -> None:
        """The text is complete: say what is left, then end. May be called again."""
        with self._feeding:
            if not self._session.text_complete:
                self._session.quiet_since = time.monotonic()
                self._session.text_complete = True
                self._session.send(Finish(id=self._session.id))

    def take_words(self, *, begun: bool = False) -> list[SpokenWord]:  # noqa: ARG002 - servers tell whole words
        words, taken = self._session.words, []
        while words and (self._over or words[0].ends_s <= self._taken_s) and self.finish_reason != "cancelled":
            taken.append(words.popleft())
        return taken

    def cancel(self) -> None:
        if self._chunks.finish("cancelled"):
            self._session.cancel()

    @property
    def seed(self) -> int:
        """The seed in use; the same request with this seed gives the same codes."""
        return self._session.seed

    @property
    def backend(self) -> str:
        """Name of the talker backend that speaks now; empty until the server has answered."""
        return self._session.backend

    @property
    def switches(self) -> tuple[BackendSwitch, ...]:
        """Moves to other backends, oldest first."""
        return self._session.switches

    def facts(self) -> StreamFacts:
        """Figures so far, measured here: times include the network.

        ``queue_wait_s``, ``segments``, ``underruns`` and ``unsaid_chars`` are the server's, and ``None`` or 0 until the
        stream has ended.
        """
        session, first = self._session, self._chunks.first_delivered_at
        audio_s, last, server = session.samples_received / SAMPLE_RATE, session.last_received_at, session.server_facts
        return StreamFacts(
            backend=session.backend,
            codec=session.codec,
            seed=session.seed,
            finish_reason=self.finish_reason,
            frames=session.frames_received,
            chunks=session.chunks_received,
            segments=0 if server is None else server.segments,
            audio_s=audio_s,
            queue_wait_s=None if server is None else server.queue_wait_s,
            ttfc_s=None if first is None else first - session.requested_at,
            rtf=None if last is None or not audio_s else (last - session.requested_at) / audio_s,
            underruns=0 if server is None else server.underruns,
            switches=session.switches,
            unsaid_chars=(0 if server is None else server.unsaid_chars) + self._ignored_chars,
        )

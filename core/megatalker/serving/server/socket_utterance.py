"""One utterance of a WebSocket connection: takes what the engine makes and sends it."""

import asyncio

from starlette.websockets import WebSocketDisconnect

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import SpeechStream
from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import (
    REFUSED_TEXT,
    Done,
    Facts,
    InstructFate,
    Open,
    Opened,
    Switched,
    Words,
    WordTime,
)
from megatalker.serving.protocol.packets import pack
from megatalker.serving.server.link import Link


class SocketUtterance:
    """A stream of the engine, and the client that listens to it. Belongs to one event loop.

    Args:
        request: what the client asked for.
        stream: what the engine makes of it.
        link: where to send it.
        max_piece_chars: longer pieces of text are refused before they cost time.
        warnings: what makes the recording that came along a poor reference.
        instruct: what becomes of the request's instruction.
        ignored: fields of the request that mean nothing here.
        text_timeout_s: an utterance whose text is not complete ends with an error when none arrives for this long.
    """

    def __init__(
        self,
        request: Open,
        stream: SpeechStream,
        link: Link,
        *,
        max_piece_chars: int,
        warnings: tuple[str, ...],
        instruct: InstructFate | None,
        ignored: tuple[str, ...] = (),
        text_timeout_s: float,
    ) -> None:
        self.stream = stream
        self._warnings = warnings
        self._id, self._format, self._link = request.id, request.format, link
        self._instruct, self._ignored = instruct, ignored
        self._max_piece_chars, self._text_timeout_s = max_piece_chars, text_timeout_s
        self._told_switches = 0
        self._refusal: InvalidRequestError | None = None
        self._timer: asyncio.TimerHandle | None = None
        if request.text is None:
            self._expect_text()

    # ---- from the client

    def feed(self, text: str) -> None:
        """More text. A refused piece ends nothing: the pieces before and after it are spoken.

        Raises:
            InvalidRequestError: the piece is refused; the message names the utterance.
        """
        self._expect_text()
        try:
            if len(text) > self._max_piece_chars:
                raise InvalidRequestError(
                    f"a piece of text has {len(text)} characters, expected at most {self._max_piece_chars}"
                )
            self.stream.feed(text)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{REFUSED_TEXT} {self._id!r}: {error}; the rest of it is spoken") from error

    def finish(self) -> None:
        """The text is complete."""
        self._expect_no_text()
        self.stream.finish()

    # ---- to the client

    async def run(self) -> None:
        """Send everything until the utterance is over; the last event is ``done`` or ``error``.

        Raises:
            WebSocketDisconnect: the client is gone.
        """
        try:
            await self._speak()
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._link.tell_failure(self._id, error)
        finally:
            self._expect_no_text()

    async def _speak(self) -> None:
        facts = self.stream.facts()
        await self._link.tell(
            Opened(
                id=self._id,
                sample_rate=SAMPLE_RATE,
                format=self._format,
                backend=facts.backend,
                codec=facts.codec,
                seed=facts.seed,
                warnings=self._warnings,
                instruct=self._instruct,
                ignored=told_names(self._ignored),
            )
        )
        async for chunk in self.stream:
            await self._tell_switches()
            await self._link.play(pack(self._id, chunk, self._format))
            await self._tell_words()
        if self._refusal is not None:
            raise self._refusal
        await self._tell_switches()
        await self._tell_words()
        reason = self.stream.finish_reason
        assert reason is not None, "the iteration has ended"
        assert reason != "error", "the iteration raises errors"
        facts = self.stream.facts()
        await self._link.tell(Done(id=self._id, finish_reason=reason, facts=Facts.model_validate(facts)))

    async def _tell_words(self) -> None:
        if words := self.stream.take_words():
            await self._link.tell(Words(id=self._id, words=tuple(map(WordTime.of, words))))

    async def _tell_switches(self) -> None:
        for switch in self.stream.switches[self._told_switches :]:
            self._told_switches += 1
            await self._link.tell(
                Switched(
                    id=self._id,
                    kind=switch.kind,
                    origin=switch.origin,
                    target=switch.target,
                    reason=switch.reason,
                    frame=switch.frame,
                )
            )

    # ---- patience

    def _expect_text(self) -> None:
        self._expect_no_text()
        self._timer = asyncio.get_running_loop().call_later(self._text_timeout_s, self._lose_patience)

    def _expect_no_text(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose_patience(self) -> None:
        self._refuse(
            InvalidRequestError(
                f"no text came for {self._text_timeout_s:g} s, expected text or finish; the utterance is ended. "
                "The server's setting text_timeout_s allows more"
            )
        )

    def _refuse(self, error: InvalidRequestError) -> None:
        if self._refusal is None:
            self._refusal = error
            self.stream.cancel()

"""``WS /v1/speak``: one connection with many utterances, each of which sends its answer in a task of its own."""

import asyncio
import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import SpeechStream
from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import (
    REFUSED_TEXT,
    Cancel,
    Done,
    Facts,
    Failed,
    Finish,
    InstructFate,
    Message,
    Open,
    Opened,
    Request,
    Switched,
    Text,
    Words,
    WordTime,
    read_request,
)
from megatalker.serving.protocol.packets import pack
from megatalker.serving.server.callers import TokenBucket, current_request
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import log_ignored
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)

ERRORS, ERRORS_A_SECOND = 200, 20
"""Error events that a connection may earn, and how many more each second."""


def log_defect(error: Exception) -> None:
    """Write down what nobody intended: clients are not told more than that it happened."""
    if not isinstance(error, MegatalkerError):
        logger.error("an utterance failed", exc_info=error)


async def receive_text(socket: WebSocket) -> str:
    """The client's next message.

    Raises:
        WebSocketDisconnect: the client is gone.
        InvalidRequestError: the message is binary.
    """
    await asyncio.sleep(0)  # what came at once is received without a pause: others get their turn in between
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    text: str | None = message.get("text")
    if text is None:
        raise InvalidRequestError("a binary message came, expected JSON in text messages")
    return text


class Link:
    """Sends one message at a time, in the order asked for.

    Raises:
        WebSocketDisconnect: from each method, when the client is gone, or was dropped because it reads nothing.
    """

    def __init__(self, socket: WebSocket, owner_errors: TokenBucket) -> None:
        self._socket, self._owner_errors = socket, owner_errors
        self._turn = asyncio.Lock()
        self._errors = TokenBucket(ERRORS_A_SECOND, ERRORS)

    async def tell(self, event: Message) -> None:
        """Send an event."""
        await self._send(event.to_json())

    async def tell_failure(self, utterance: str, error: Exception) -> None:
        """End an utterance with an error event; what nobody intended goes to the log as well."""
        log_defect(error)
        await self.tell(Failed(id=utterance, error=problem(error)))

    async def count_error(self) -> None:
        """A message of the client is about to be answered with an error. A connection that earns too many is hung up
        on; an owner whose connections do has to wait.
        """
        if self._errors.take():
            reason = f"more than {ERRORS_A_SECOND} messages a second that cannot be obeyed"
            await self._socket.close(1008, reason)
            raise WebSocketDisconnect(1008, reason)
        while wait_s := self._owner_errors.take():
            await asyncio.sleep(wait_s)

    async def play(self, packet: bytes) -> None:
        """Send a chunk of audio."""
        await self._send(packet)

    async def _send(self, message: str | bytes) -> None:
        async with self._turn:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)


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


class Conversation:
    """Obeys one client until it goes away; then everything it began is cancelled."""

    def __init__(self, socket: WebSocket, service: SpeechService, settings: ServerSettings) -> None:
        self._socket, self._service, self._settings = socket, service, settings
        self._link = Link(socket, service.socket_errors.of_owner(current_request().owner))
        self._utterances: dict[str, SocketUtterance] = {}

    async def run(self) -> None:
        """Serve the connection, which must have been accepted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._listen(tasks)
        except* WebSocketDisconnect:
            pass  # which has cancelled the tasks

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                text = await receive_text(self._socket)
                await self._obey(*read_request(text, strict=self._settings.strict), tasks)
            except InvalidRequestError as error:
                await self._link.count_error()
                self._service.metrics.refused(error, "websocket")
                await self._link.tell(Failed(id=None, error=problem(error)))

    async def _obey(self, request: Request, ignored: tuple[str, ...], tasks: asyncio.TaskGroup) -> None:
        log_ignored(ignored)
        if isinstance(request, Open):
            await self._open(request, ignored, tasks)
            return
        utterance = self._utterances.get(request.id)
        if utterance is None:
            raise InvalidRequestError(f"{request.type}: no utterance {request.id!r} is open; open it, or it has ended")
        match request:
            case Text():
                utterance.feed(request.text)
            case Finish():
                utterance.finish()
            case Cancel():
                utterance.stream.cancel()

    async def _open(self, request: Open, ignored: tuple[str, ...], tasks: asyncio.TaskGroup) -> None:
        if request.id in self._utterances:
            raise InvalidRequestError(f"open: an utterance {request.id!r} is open already; use another id")
        try:
            stream = await self._service.begin(
                request.text,
                request,
                "websocket",
                return_codes=request.return_codes,
                word_times=request.word_times,
            )
        except Exception as error:
            await self._link.count_error()
            self._service.metrics.refused(error, "websocket")
            await self._link.tell_failure(request.id, error)
            return
        utterance = SocketUtterance(
            request,
            stream,
            self._link,
            max_piece_chars=self._service.engine.settings.max_text_chars,
            warnings=self._service.warnings(stream),
            instruct=self._service.instruct_fate(request),
            ignored=ignored,
            text_timeout_s=self._settings.text_timeout_s,
        )
        self._utterances[request.id] = utterance
        task = tasks.create_task(utterance.run())
        task.add_done_callback(lambda _: self._end(request.id))  # runs even if the task never began

    def _end(self, name: str) -> None:
        self._service.end(self._utterances.pop(name).stream)

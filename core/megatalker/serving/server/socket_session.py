"""``WS /v1/speak``: one connection with many utterances, each of which sends its answer in a task of its own."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.engine import Chunk
from megatalker.errors import CapacityError, InvalidRequestError, MarkupError, MegatalkerError
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import (
    REFUSED_TEXT,
    CancelMessage,
    Done,
    Event,
    Failed,
    Finish,
    MarkPlace,
    Marks,
    Open,
    Opened,
    SegmentEnd,
    SegmentEnds,
    Switched,
    Text,
    Words,
    WordTime,
    read_request,
)
from megatalker.serving.protocol.packets import PacketEncoder
from megatalker.serving.samples import SampleEncoder
from megatalker.serving.server.callers import TokenBucket, current_request
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speech_service import SpeechService, UtteranceSession
from megatalker.serving.server.telemetry import log_ignored
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

ERRORS, ERRORS_A_SECOND = 200, 20
"""Error events that a connection may earn, and how many more each second."""


def log_defect(error: Exception) -> None:
    """Log what nobody intended: clients are told no more than that it happened."""
    if not isinstance(error, MegatalkerError):
        logger.error("an utterance failed", exc_info=error)


class AudioPackets(Protocol):
    """Makes binary messages of one utterance's chunks."""

    def push(self, chunk: Chunk) -> list[bytes]:
        """Return the messages that this chunk completes."""

    def finish(self) -> list[bytes]:
        """Return the messages that are left after the last chunk."""


class SocketUtterance:
    """One utterance of a connection: takes what the engine makes and sends it. Belongs to one event loop.

    An utterance whose text is not complete ends with an error when none arrives for ``text_timeout_s``.

    Args:
        request: what the client asked for.
        session: what the engine makes of it.
        socket: where to send it.
        ignored: fields of the request that mean nothing here.
    """

    def __init__(
        self, request: Open, session: UtteranceSession, socket: "SocketSession", ignored: tuple[str, ...]
    ) -> None:
        self.session = session
        self._stream = session.stream
        self._request, self._socket, self._ignored = request, socket, ignored
        self._sent_switches = 0
        self._refusal: InvalidRequestError | None = None
        self._timer: asyncio.TimerHandle | None = None
        if request.text is None:
            self._start_text_timer()

    # ---- from the client

    async def feed(self, text: str) -> None:
        """Append text. A refused piece ends nothing: the pieces before and after it are spoken.

        Raises:
            InvalidRequestError: the piece is refused; the message names the utterance.
        """
        self._start_text_timer()
        most = self.session.service.engine.settings.max_text_chars
        try:
            if len(text) > most:  # before it costs time
                raise InvalidRequestError(f"a piece of text has {len(text)} characters, expected at most {most}")
            await self.session.feed(text)
        except MarkupError:  # which ends the utterance, and is told by it
            pass
        except InvalidRequestError as error:
            name = self._request.id
            raise InvalidRequestError(f"{REFUSED_TEXT} {name!r}: {error}; the rest of it is spoken") from error

    def finish(self) -> None:
        """The text is complete."""
        self._stop_text_timer()
        with suppress(MarkupError):  # which ends the utterance, and is told by it
            self._stream.finish()

    def cancel(self) -> None:
        """End the speech now."""
        self._stream.cancel()

    # ---- to the client

    async def run(self) -> None:
        """Send everything until the utterance is over; the last event is ``done`` or ``error``.

        Raises:
            WebSocketDisconnect: the client is gone.
        """
        try:
            await self.speak()
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._socket.send_failure(self._request.id, error)
        finally:
            self._stop_text_timer()

    async def speak(self) -> None:
        """Send the speech, and the event ``done``; raises what the stream does."""
        facts, request = self._stream.facts(), self._request
        encoder = SampleEncoder(request.format, request.sample_rate)
        packets = self._socket.packets(request.id, encoder)
        await self._socket.send_event(
            Opened(
                id=request.id,
                sample_rate=encoder.rate,
                format=request.format,
                backend=facts.backend,
                codec=facts.codec,
                seed=facts.seed,
                warnings=self.session.warnings,
                instruct=self.session.instruct,
                ignored=told_names(self._ignored),
            )
        )
        async for chunk in self._stream:
            await self._send_switches()
            if request.resumable and chunk.ends:  # before it: without them its codes could not be gone on after
                await self._socket.send_event(SegmentEnds(id=request.id, ends=list(map(SegmentEnd.of, chunk.ends))))
            if chunk.marks:
                await self._socket.send_event(Marks(id=request.id, marks=tuple(map(MarkPlace.of, chunk.marks))))
            for packet in packets.push(chunk):
                await self._socket.send_audio(packet)
            await self._send_words()
        if self._refusal is not None:
            raise self._refusal
        if self._stream.finish_reason != "cancelled":
            for packet in packets.finish():
                await self._socket.send_audio(packet)
        await self._send_switches()
        await self._send_words()
        facts = self._stream.facts()
        assert facts.finish_reason is not None, "the iteration has ended"
        await self._socket.send_event(Done(id=request.id, finish_reason=facts.finish_reason, facts=facts))

    async def _send_words(self) -> None:
        if words := self._stream.take_words():
            told, estimated = tuple(map(WordTime.of, words)), any(word.estimated for word in words)
            await self._socket.send_event(Words(id=self._request.id, words=told, estimated=estimated))

    async def _send_switches(self) -> None:
        for switch in self._stream.switches[self._sent_switches :]:
            self._sent_switches += 1
            await self._socket.send_event(Switched.from_switch(self._request.id, switch))

    # ---- how long text may take

    def _start_text_timer(self) -> None:
        self._stop_text_timer()
        seconds = self._socket.settings.text_timeout_s
        self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up_on_text)

    def _stop_text_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up_on_text(self) -> None:
        if self._refusal is None:
            self._refusal = InvalidRequestError(
                f"no text came for {self._socket.settings.text_timeout_s:g} s, expected text or finish; the utterance "
                "is ended. The server's setting text_timeout_s allows more"
            )
            self._stream.cancel()


class SocketSession:
    """One connection: reads requests, and sends one message at a time in the order asked for. When the client goes
    away, everything that it began is cancelled.

    Another protocol over the same utterances overrides :meth:`serve`, :meth:`handle`, and the methods that send.

    Raises:
        WebSocketDisconnect: from each method that sends, when the client is gone, or was dropped because it reads
            nothing.
    """

    def __init__(self, socket: WebSocket, service: SpeechService, settings: ServerSettings) -> None:
        self.settings = settings
        self._socket, self._service = socket, service
        self._sending = asyncio.Lock()
        self._errors = TokenBucket(ERRORS_A_SECOND, ERRORS)
        self._owner_errors = service.socket_errors.of_owner(current_request().owner)
        self._utterances: dict[str, SocketUtterance] = {}
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Serve the connection, which must have been accepted."""
        try:
            async with self._tasks:
                await self.serve()
        except* WebSocketDisconnect:
            pass  # which has cancelled the tasks

    async def serve(self) -> None:
        """Read requests until the client goes away. What a message does wrong ends nothing."""
        while True:
            try:
                await self.handle(await self._receive_text())
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self.refuse(None, error)

    async def handle(self, text: str) -> None:
        """Do what a message asks for.

        Raises:
            InvalidRequestError: it can never work.
        """
        request, ignored = await self.read(text, partial(read_request, strict=self.settings.strict))
        log_ignored(ignored)
        if isinstance(request, Open):
            await self._open(request, ignored)
            return
        utterance = self._utterances.get(request.id)
        if utterance is None:
            raise InvalidRequestError(f"{request.type}: no utterance {request.id!r} is open; open it, or it has ended")
        match request:
            case Text():
                await utterance.feed(request.text)
            case Finish():
                utterance.finish()
            case CancelMessage():
                utterance.cancel()

    async def begin(self, request: Open, ignored: tuple[str, ...] = ()) -> SocketUtterance:
        """Begin an utterance; ``session.end`` must follow. Raises as :meth:`SpeechService.begin`."""
        wanted: dict[str, Any] = {"return_codes": request.return_codes, "word_times": request.word_times}
        if request.resumable and not request.return_codes:
            raise InvalidRequestError("resumable: what was said is told by codes; ask for return_codes, too")
        if request.after is not None:
            wanted["after"] = request.after.continuation(self._service.engine.checkpoint.config.num_code_groups)
        session = await self._service.begin(request.text, request, "websocket", **wanted)
        return SocketUtterance(request, session, self, ignored)

    async def _open(self, request: Open, ignored: tuple[str, ...]) -> None:
        if request.id in self._utterances:
            raise InvalidRequestError(f"open: an utterance {request.id!r} is open already; use another id")
        try:
            utterance = await self.begin(request, ignored)
        except Exception as error:
            await self.refuse(request.id, error)
            return
        self._utterances[request.id] = utterance
        task = self._tasks.create_task(utterance.run())
        task.add_done_callback(lambda _: self._utterances.pop(request.id).session.end())  # even if it never began

    async def read(self, text: str, read: Callable[[str], T]) -> T:
        """Return what ``read`` makes of a message, in a thread if it is long."""
        return await self._service.checks.read(len(text), partial(read, text))

    async def _receive_text(self) -> str:
        message = await self._socket.receive()
        await self._service.turns.take(current_request().owner)
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        text: str | None = message.get("text")
        if text is None:
            raise InvalidRequestError("a binary message came, expected JSON in text messages")
        return text

    # ---- to the client

    async def refuse(self, utterance: str | None, error: Exception) -> None:
        """Answer a message with an error, and count it. A connection that earns too many errors is hung up on, but not
        where the request was right and only came at a bad time: others may speak over this connection. An owner whose
        connections earn too many has to wait.
        """
        if not isinstance(error, CapacityError) and self._errors.take():
            reason = f"more than {ERRORS_A_SECOND} messages a second that cannot be obeyed"
            await self._socket.close(1008, reason)
            raise WebSocketDisconnect(1008, reason)
        await asyncio.sleep(self._owner_errors.reserve())
        self._service.metrics.refused(error, "websocket")
        await self.send_failure(utterance, error)

    async def send_failure(self, utterance: str | None, error: Exception) -> None:
        """Send an error."""
        log_defect(error)
        await self.send_event(Failed(id=utterance, error=problem(error)))

    async def send_event(self, event: Event) -> None:
        """Send an event."""
        await self.send(event.to_json())

    def packets(self, utterance: str, encoder: SampleEncoder) -> AudioPackets:
        """Return what makes binary messages of an utterance's chunks."""
        return PacketEncoder(utterance, encoder)

    async def send_audio(self, packet: bytes) -> None:
        """Send a binary message of :meth:`packets`."""
        await self.send(packet)

    async def send(self, message: str | bytes) -> None:
        """Send a message after those before it."""
        async with self._sending:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)

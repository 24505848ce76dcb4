"""``WS /api/v1/speak``: one utterance after another, in few words."""

import asyncio
from collections import deque
from dataclasses import dataclass

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import SpeechStream
from megatalker.errors import (
    BackendFaultError,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
)
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.protocol.plain_messages import (
    CancelAll,
    Complete,
    ErrorCode,
    PlainError,
    PlainRequest,
    Ready,
    Speak,
    StartSession,
    Stop,
    read_plain_request,
)
from megatalker.serving.server.callers import current_request
from megatalker.serving.server.encoding import pieces
from megatalker.serving.server.problems import DrainingError, NotReadyError, UnknownVoiceError, problem
from megatalker.serving.server.socket_session import Link, log_defect, receive_text
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import log_ignored
from megatalker.voices import list_speakers
from megatalker.voices.names import name_key

MAX_ASKED = 16
"""Utterances of one session that may be asked for and not complete."""

_CODES: dict[type[MegatalkerError], ErrorCode] = {
    NotReadyError: "MODEL_LOADING",
    DrainingError: "CLOSING",
    EngineClosedError: "CLOSING",
    CapacityError: "TOO_MANY_STREAMS",
    BackendFaultError: "BACKEND_FAULT",
}
"""The first that fits."""


@dataclass(eq=False)
class _Asked:
    """An utterance that was asked for and is not complete."""

    id: str
    text: str
    fields: SpeechFields
    stream: SpeechStream | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.stream is not None:
            self.stream.cancel()


class PlainSession:
    """Obeys one client until it stops or goes away; then everything it asked for is cancelled."""

    def __init__(self, socket: WebSocket, service: SpeechService, *, strict: bool) -> None:
        self._socket, self._service = socket, service
        self._link = Link(socket, service.socket_errors.of_owner(current_request().owner))
        self._strict = strict
        self._fields: SpeechFields | None = None
        self._asked: deque[_Asked] = deque()
        self._news = asyncio.Event()
        self._stopped = False

    async def run(self) -> None:
        """Serve the connection, which must have been accepted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(self._listen())
                await self._talk()
                listening.cancel()
            await self._socket.close()
        except* WebSocketDisconnect:
            pass  # which has ended both

    # ---- from the client

    async def _listen(self) -> None:
        while True:
            try:
                request, ignored = read_plain_request(await receive_text(self._socket), strict=self._strict)
                log_ignored(ignored)
                await self._obey(request, ignored)
            except Exception as error:
                await self._tell_failure(None, error, "INVALID_MESSAGE")

    async def _obey(self, request: PlainRequest, ignored: tuple[str, ...]) -> None:
        match request:
            case StartSession():
                await self._start(request, ignored)
            case Speak():
                await self._ask(request)
            case CancelAll():
                for asked in self._asked:
                    asked.cancel()
            case Stop():
                self._stopped = True
                self._news.set()

    async def _start(self, request: StartSession, ignored: tuple[str, ...]) -> None:
        fields, service = request.speech_fields(), self._service
        known = (*list_speakers(service.engine.checkpoint), *(name for name, _ in service.voices.items()))
        if fields.voice is not None and name_key(fields.voice) not in map(name_key, known):
            unknown = UnknownVoiceError(f"unknown speaker {fields.voice!r}; known: {', '.join(known) or 'none'}")
            await self._tell_failure(None, unknown, "UNKNOWN_VOICE")
            return
        await service.check(fields)
        self._fields = fields
        ready = Ready(sample_rate=SAMPLE_RATE, backend=service.engine.backend, ignored=told_names(ignored))
        await self._link.tell(ready)

    async def _ask(self, request: Speak) -> None:
        if self._fields is None or self._stopped:
            why = "the session was stopped" if self._stopped else "send start first, and wait for ready"
            raise InvalidRequestError(f"speak: {why}")
        if len(self._asked) >= MAX_ASKED:
            error = CapacityError(f"{MAX_ASKED} utterances are not complete yet; wait for the next complete")
            await self._tell_failure(request.id, error, "TOO_MANY_STREAMS")
            return
        self._asked.append(_Asked(request.id, request.text, self._fields))
        self._news.set()

    # ---- to the client

    async def _talk(self) -> None:
        while self._asked or not self._stopped:
            if not self._asked:
                self._news.clear()
                await self._news.wait()
                continue
            try:
                await self._speak(self._asked[0])
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self._tell_failure(self._asked[0].id, error, "INVALID_TEXT")
            self._asked.popleft()

    async def _speak(self, asked: _Asked) -> None:
        if asked.cancelled:
            await self._link.tell(Complete(id=asked.id, finish_reason="cancelled", audio_s=0.0))
            return
        stream = asked.stream = await self._service.begin(asked.text, asked.fields, "websocket")
        try:
            if asked.cancelled:  # meanwhile
                stream.cancel()
            async for chunk in stream:
                for piece in pieces(chunk.pcm):
                    if not asked.cancelled:
                        await self._link.play(piece)
            facts = stream.facts()
        finally:
            self._service.end(stream)
        reason = facts.finish_reason
        assert reason is not None, "the iteration has ended"
        assert reason != "error", "the iteration raises errors"
        await self._link.tell(
            Complete(id=asked.id, finish_reason=reason, audio_s=facts.audio_s, unsaid_chars=facts.unsaid_chars)
        )

    async def _tell_failure(self, utterance: str | None, error: Exception, invalid: ErrorCode) -> None:
        """``invalid`` is the code of what can never work."""
        if isinstance(error, WebSocketDisconnect):
            raise error
        log_defect(error)
        await self._link.count_error()
        self._service.metrics.refused(error, "websocket")
        internal: ErrorCode = "INTERNAL_ERROR"
        codes = {**_CODES, MegatalkerError: invalid}
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), internal)
        told = problem(error)
        await self._link.tell(
            PlainError(id=utterance, code=code, message=told.message, retry_after_s=told.retry_after_s)
        )

"""``WS /api/v1/speak``: one utterance after another in few words, translated to and from ``/v1/speak``."""

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.engine import Chunk
from megatalker.errors import (
    BackendFaultError,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
)
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.protocol.messages import Done, Event, Marks, Open
from megatalker.serving.protocol.plain_messages import (
    PIECE_S,
    CancelAll,
    Complete,
    ErrorCode,
    PlainError,
    ReachedMarks,
    Ready,
    Speak,
    StartSession,
    Stop,
    read_plain_request,
)
from megatalker.serving.samples import SampleEncoder, SampleFrames
from megatalker.serving.server.problems import DrainingError, NotReadyError, UnknownVoiceError, problem
from megatalker.serving.server.socket_session import AudioPackets, SocketSession, SocketUtterance, log_defect
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import log_ignored
from megatalker.settings import ServerSettings
from megatalker.voices import list_speakers
from megatalker.voices.mixing import mix_parts
from megatalker.voices.names import name_key

MAX_QUEUED = 16
"""Utterances of one session that may be incomplete at a time, waiting ones included."""
_CODES: dict[type[Exception], ErrorCode] = {
    NotReadyError: "MODEL_LOADING",
    DrainingError: "CLOSING",
    EngineClosedError: "CLOSING",
    CapacityError: "TOO_MANY_STREAMS",
    BackendFaultError: "BACKEND_FAULT",
    UnknownVoiceError: "UNKNOWN_VOICE",
}
"""The first that fits."""


@dataclass(eq=False)
class _Queued:
    """An utterance that was asked for and is not complete."""

    request: Open
    utterance: SocketUtterance | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.utterance is not None:
            self.utterance.cancel()


class _Pieces:
    """Binary messages that are samples alone."""

    def __init__(self, frames: SampleFrames) -> None:
        self._frames = frames

    def push(self, chunk: Chunk) -> list[bytes]:
        return self._frames.push(chunk.pcm)

    def finish(self) -> list[bytes]:
        return self._frames.finish(pad=False)


class PlainSession(SocketSession):
    """Speaks what a client asks for in order, until it stops or goes away."""

    def __init__(self, socket: WebSocket, service: SpeechService, settings: ServerSettings) -> None:
        super().__init__(socket, service, settings)
        self._started: StartSession | None = None
        self._queue: deque[_Queued] = deque()
        self._changed = asyncio.Event()
        self._stopped = False

    async def serve(self) -> None:
        """Read requests, and speak until the client stops."""
        reading = self._tasks.create_task(super().serve())
        while self._queue or not self._stopped:
            if not self._queue:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                await self._speak(self._queue[0])
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await self.refuse(self._queue[0].request.id, error)
            self._queue.popleft()
        reading.cancel()
        await self._socket.close()

    async def handle(self, text: str) -> None:
        """Do what a message asks for; speech waits for what was asked for before."""
        request, ignored = await self.read(text, partial(read_plain_request, strict=self.settings.strict))
        log_ignored(ignored)
        match request:
            case StartSession():
                await self._start(request, ignored)
            case Speak():
                await self._enqueue(request)
            case CancelAll():
                for queued in self._queue:
                    queued.cancel()
            case Stop():
                self._stopped = True
                self._changed.set()

    async def _start(self, request: StartSession, ignored: tuple[str, ...]) -> None:
        fields = request.speech_fields()
        engine = self._service.engine
        known = (*list_speakers(engine.checkpoint), *(name for name, _ in self._service.voices.items()))
        is_one = fields.voice is not None and mix_parts(fields.voice) is None
        if is_one and name_key(fields.voice or "") not in map(name_key, known):
            raise UnknownVoiceError(f"unknown speaker {fields.voice!r}; known: {', '.join(known) or 'none'}")
        await self._service.check(fields)
        self._started = request
        ready = Ready(
            sample_rate=SampleEncoder(request.format, request.sample_rate).rate,
            format=request.format,
            backend=engine.backend,
            ignored=told_names(ignored),
        )
        await self.send(ready.to_json())

    async def _enqueue(self, request: Speak) -> None:
        started = self._started
        if started is None or self._stopped:
            why = "the session was stopped" if self._stopped else "send start first, and wait for ready"
            raise InvalidRequestError(f"speak: {why}")
        if len(self._queue) >= MAX_QUEUED:
            error = CapacityError(f"{MAX_QUEUED} utterances are not complete yet; wait for the next complete")
            await self.refuse(request.id, error)
            return
        spoken = Open(
            id=request.id,
            text=request.text,
            format=started.format,
            sample_rate=started.sample_rate,
            **dict(started.speech_fields()),
        )
        self._queue.append(_Queued(spoken))
        self._changed.set()

    async def _speak(self, queued: _Queued) -> None:
        if queued.cancelled:
            await self.send(Complete(id=queued.request.id, finish_reason="cancelled", audio_s=0.0).to_json())
            return
        utterance = queued.utterance = await self.begin(queued.request)
        try:
            if queued.cancelled:  # meanwhile
                utterance.cancel()
            await utterance.speak()
        finally:
            utterance.session.end()

    # ---- to the client

    async def send_failure(self, utterance: str | None, error: Exception) -> None:
        """Send an error as a code."""
        log_defect(error)
        invalid: ErrorCode = "INVALID_MESSAGE" if utterance is None else "INVALID_TEXT"
        kinds = {**_CODES, MegatalkerError: invalid, Exception: "INTERNAL_ERROR"}
        code = next(code for kind, code in kinds.items() if isinstance(error, kind))
        told = problem(error)
        failure = PlainError(id=utterance, code=code, message=told.message, retry_after_s=told.retry_after_s)
        await self.send(failure.to_json())

    async def send_event(self, event: Event) -> None:
        """Send marks and the end of an utterance; the rest of what ``/v1/speak`` tells is left out."""
        if isinstance(event, Marks) and not self._queue[0].cancelled:
            await self.send(ReachedMarks(id=event.id, marks=event.marks).to_json())
        if isinstance(event, Done):
            audio_s, unsaid = event.facts.audio_s, event.facts.unsaid_chars
            complete = Complete(id=event.id, finish_reason=event.finish_reason, audio_s=audio_s, unsaid_chars=unsaid)
            await self.send(complete.to_json())

    def packets(self, utterance: str, encoder: SampleEncoder) -> AudioPackets:  # noqa: ARG002 - the order tells
        """Return what makes pieces of 40 ms."""
        return _Pieces(SampleFrames(encoder, PIECE_S))

    async def send_audio(self, packet: bytes) -> None:
        """Send a piece of the first utterance in the queue."""
        if not self._queue[0].cancelled:
            await self.send(packet)

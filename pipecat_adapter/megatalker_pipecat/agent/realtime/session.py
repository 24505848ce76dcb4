"""One connection of OpenAI's Realtime protocol: audio and text in, the agent's answers out."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipecat.frames.frames import InputAudioRawFrame, LLMUpdateSettingsFrame, TTSUpdateSettingsFrame
from pipecat.services.settings import LLMSettings
from starlette.websockets import WebSocket

from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.realtime_messages import (
    AgentSessionFields,
    AgentSessionUpdate,
    AudioAppend,
    AudioClear,
    AudioCommit,
    AudioInput,
    AudioOutput,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    RealtimeError,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    read_agent_event,
)
from megatalker.serving.protocol.voice_aliases import openai_voices
from megatalker.serving.server.realtime_events import new_id
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent.realtime.answers import AnswerError
from megatalker_pipecat.agent.realtime.incoming import RATE, IncomingAudio
from megatalker_pipecat.agent.realtime.items import heard_item
from megatalker_pipecat.agent.realtime.responses import AnsweringConnection
from megatalker_pipecat.agent.realtime.stages import PIECE_S
from megatalker_pipecat.agent.reception import Reception

VAD = "server_vad"


class AgentRealtimeSession(AnsweringConnection):
    """A conversation over one WebSocket: its settings, and what is said in it."""

    def __init__(self, socket: WebSocket, reception: Reception, idle_timeout_s: float | None) -> None:
        super().__init__(socket, reception, idle_timeout_s)
        self._reception = reception
        self._id = new_id("sess")
        self._incoming = IncomingAudio()
        self._detects = asyncio.Event()
        """The server finds out when somebody has finished."""
        if self._plan.stt is not None:
            self._detects.set()
        self._heard_s = 0.0
        self._message: str | None = None
        """Name of the item that somebody is speaking."""
        self._transcribing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Talk until the client leaves, or nobody says anything for long, or the server stops."""
        for stage in (self._conversation.model, self._conversation.speech):
            stage.add_event_handler("on_error", self._answer_failed)
        self._conversation.worker.add_event_handler("on_pipeline_error", self._failed)
        running = self._start(self._reception.hold(self._conversation), "conversation")
        try:
            await self.tell("session.created", session=self._shown())
            await self._conversation.greet()
            reading, hearing = self._start(self._read(), "reading"), self._start(self._feed(), "hearing")
            left = self._start(self.gone.wait(), "leaving")
            await asyncio.wait([running, reading, hearing, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._answers.fail(AnswerError("the conversation is over"))
            await self._answers.end()
            self.gone.set()
            for task in self._tasks:
                if task is not running:
                    task.cancel()
            await self._conversation.worker.cancel()
            await asyncio.wait([running])
            await self.close(1000, "the conversation is over")

    async def _read(self) -> None:
        await self._committed.started.wait()
        await self.read()

    # ---- from the client

    async def handle(self, given: Mapping[str, Any]) -> None:
        match read_agent_event(given):
            case AgentSessionUpdate(session=fields):
                await self._update(fields)
            case ItemCreate(item=item, previous_item_id=before):
                await self._items.write(item, before)
            case ItemRetrieve(item_id=name):
                await self._items.retrieve(name)
            case ItemDelete(item_id=name):
                await self._items.delete(name)
            case ItemTruncate() as event:
                await self._truncate(event)
            case ResponseCreate(response=asked):
                await self._respond(asked or ResponseFields())
            case ResponseCancel(response_id=name):
                await self._cancel(name)
            case AudioAppend(audio=audio):
                self._require_hearing()
                await self._incoming.append(audio)
            case AudioCommit():
                await self._commit()
            case AudioClear():
                self._require_hearing()
                await self._incoming.clear()
                await self.tell("input_audio_buffer.cleared")

    # ---- the session

    async def _update(self, fields: AgentSessionFields) -> None:
        output = (fields.audio and fields.audio.output) or AudioOutput()
        given = (fields.audio and fields.audio.input) or AudioInput()
        if fields.megatalker is not None:
            raise RealtimeError("megatalker is a field of megatalker serve alone", "session.megatalker", "unsupported")
        if (output.speed or fields.speed or 1.0) != 1.0:
            raise RealtimeError(
                "speed is not 1: this agent speaks at its own", "session.audio.output.speed", "unsupported"
            )
        detection = given if "turn_detection" in given.model_fields_set else fields
        detects = self._detects.is_set()
        if "turn_detection" in detection.model_fields_set:
            detects = detection.turn_detection is not None
        if detects:
            self._require_hearing()
        voice = output.voice or fields.voice
        spoken = None if voice is None else self._voice(voice)
        self._functions.check(fields)
        await self._transcribed()
        self._functions.update(fields)
        (self._detects.set if detects else self._detects.clear)()
        if (wanted := given.format or fields.input_audio_format) not in (None, self._incoming.format):
            await self._incoming.clear(wanted)
        if spoken is not None:
            settings = MegatalkerTTSService.Settings(voice=spoken)
            await self._committed.push_frame(TTSUpdateSettingsFrame(delta=settings))
        if (instructions := fields.instructions) is not None:
            await self._committed.push_frame(LLMUpdateSettingsFrame(delta=LLMSettings(system_instruction=instructions)))
        changes: dict[str, Any] = {
            "voice": voice,
            "format": output.format or fields.output_audio_format,
            "instructions": instructions,
        }
        known = {name: value for name, value in changes.items() if value is not None}
        self._answers.options = replace(self._answers.options, **known)
        await self.tell("session.updated", session=self._shown())

    def _voice(self, name: str) -> str | None:
        known: Sequence[str] = self._reception.page.offered()["voice"]
        aliases = openai_voices(known, self._plan.engine.voice)
        if name in known:
            return name
        if name not in aliases:
            expected = ", ".join(known) or "none: the checkpoint has no voices by name"
            raise FieldError(f"voice is {name!r:.60}, expected {expected}", "session.audio.output.voice")
        return aliases[name]

    def _shown(self) -> dict[str, Any]:
        options, incoming = self._answers.options, self._incoming
        detection = (
            {"type": VAD, "create_response": True, "interrupt_response": True} if self._detects.is_set() else None
        )
        heard = {"format": {"type": incoming.format.type, "rate": incoming.rate}, "turn_detection": detection}
        shown: dict[str, Any] = {
            "type": "realtime",
            "object": "realtime.session",
            "id": self._id,
            "model": (self._plan.llm and self._plan.llm.model) or "megatalker-agent",
            "output_modalities": ["audio"],
            "instructions": options.instructions or self._plan.agent.prompt,
            "audio": {"input": heard if self._plan.stt is not None else None, "output": options.output()},
            **self._functions.shown,
        }
        if self.writer.beta:
            shown |= {"modalities": ["text", "audio"], "voice": options.voice, "turn_detection": detection}
        return shown

    # ---- what the client says

    def _require_hearing(self) -> None:
        if self._plan.stt is None:
            raise RealtimeError(
                "this agent has no speech to text; send text by conversation.item.create", "type", "unsupported"
            )

    async def _feed(self) -> None:
        """Have the pipeline hear what is appended, at the pace at which it was spoken."""
        heard_until = 0.0
        while True:
            await self._detects.wait()
            await self._incoming.came.wait()
            if not self._detects.is_set():
                continue
            piece = self._incoming.take(PIECE_S)
            seconds = len(piece) / (2 * RATE)
            self._heard_s += seconds
            await self._conversation.worker.queue_frame(InputAudioRawFrame(piece, RATE, 1))
            now = time.monotonic()
            heard_until = max(heard_until, now - PIECE_S) + seconds
            await asyncio.sleep(max(0.0, heard_until - now))

    async def _commit(self) -> None:
        self._require_hearing()
        if self._detects.is_set():
            raise RealtimeError(
                "the server finds out by itself when somebody has finished; set turn_detection to null to commit",
                "type",
                "unsupported",
            )
        audio = await self._incoming.take_message()
        await self._transcribed()  # one message at a time
        name, previous = new_id("item"), self._items.last_name
        await self.tell("input_audio_buffer.committed", item_id=name, previous_item_id=previous)
        self._transcribing = self._start(self._transcribe(name, audio), "transcript")

    async def _transcribe(self, name: str, audio: bytes) -> None:
        text = await self._committed.transcribe(audio, self._conversation.worker)
        if text:
            self._conversation.context.add_message({"role": "user", "content": text})
        await self._add_heard(name, text)

    async def _transcribed(self) -> None:
        if self._transcribing is not None:
            await asyncio.wait([self._transcribing])

    async def _add_heard(self, name: str, text: str) -> None:
        await self._items.add(item := heard_item(name, text))
        if text:
            self._items.remember(item, "user")
        await self.tell("conversation.item.done", item=item.shown())
        told = {"item_id": name, "content_index": 0, "transcript": text}
        usage = {"type": "duration", "seconds": 0}
        await self.tell("conversation.item.input_audio_transcription.completed", **told, usage=usage)

    # ---- from the pipeline

    async def user_begins(self) -> None:
        self._message = new_id("item")
        told = {"audio_start_ms": int(1000 * self._heard_s), "item_id": self._message}
        await self.tell("input_audio_buffer.speech_started", **told)

    async def user_ends(self) -> None:
        if self._message is not None:
            told = {"audio_end_ms": int(1000 * self._heard_s), "item_id": self._message}
            await self.tell("input_audio_buffer.speech_stopped", **told)

    async def user_said(self, text: str) -> None:
        name, self._message = self._message or new_id("item"), None
        await self.tell("input_audio_buffer.committed", item_id=name, previous_item_id=self._items.last_name)
        await self._add_heard(name, text)

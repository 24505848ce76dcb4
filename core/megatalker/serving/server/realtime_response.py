"""A response of ``/v1/realtime``, and the items of its conversation."""

import asyncio
import base64
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from megatalker.errors import IncompleteSpeechError
from megatalker.serving.protocol.messages import SpeechFields, WordTime
from megatalker.serving.protocol.realtime_messages import BARE_FORMATS, AudioFormat, Item
from megatalker.serving.samples import default_rate
from megatalker.serving.server.audio_response import BegunSpeech, audio_body
from megatalker.serving.server.encoding import Encoder, make_encoder
from megatalker.serving.server.problems import error_details
from megatalker.serving.server.speech_service import SpeechService, UtteranceSession

Tell = Callable[..., Awaitable[None]]
"""Sends an event: its type, and its fields by name."""
NO_TOKENS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
"""There is no language model."""


def new_id(kind: str) -> str:
    """Return a name that nothing else has."""
    return f"{kind}_{uuid.uuid4().hex}"


class ConversationItem:
    """An item that the client made; its text is spoken once.

    Args:
        item: of the event that makes it.
    """

    def __init__(self, item: Item) -> None:
        self.id, self.text = item.id or new_id("item"), item.text
        self.spoken = False
        self._shown = item.model_dump(exclude_none=True, exclude=None if item.content else {"content"})

    def shown(self) -> dict[str, Any]:
        """Return the item as events tell it."""
        return {**self._shown, "id": self.id, "object": "realtime.item", "status": "completed"}


class ResponseItem(ConversationItem):
    """The item of a response: all that was said so far."""

    def __init__(self) -> None:
        super().__init__(Item(type="message", role="assistant"))
        self.spoken, self.status = True, "in_progress"
        self.audio_ms = 0.0
        self._ends, self._lengths = array("d"), array("L")

    def shown(self) -> dict[str, Any]:
        parts = [] if self.status == "in_progress" else [{"type": "output_audio", "transcript": self.text}]
        return {**super().shown(), "status": self.status, "content": parts}

    def add(self, words: list[WordTime]) -> str:
        """Append words; return the text that they add."""
        before = len(self.text)
        for word in words:
            self.text += word.before + word.word
            self._ends.append(1000 * word.end)
            self._lengths.append(len(self.text))
        return self.text[before:]

    def truncate(self, end_ms: float) -> None:
        """Forget the audio after this time, and the words that end in it."""
        if self.audio_ms - end_ms < 1:  # all of it was played
            return
        played = bisect_right(self._ends, end_ms)
        del self._ends[played:], self._lengths[played:]
        self.text = self.text[: self._lengths[-1] if played else 0]
        self.audio_ms = end_ms


Add = Callable[[ResponseItem], Awaitable[None]]
"""Adds an item to a conversation."""


@dataclass(frozen=True)
class RealtimeOptions:
    """How a session speaks."""

    voice: str | None = None
    format: AudioFormat = field(default_factory=AudioFormat)
    speed: float = 1.0
    instructions: str | None = None
    own: SpeechFields = field(default_factory=SpeechFields)

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.format.rate or default_rate(BARE_FORMATS[self.format.type])

    def encoder(self) -> Encoder:
        """Return what makes the bytes of one response."""
        return make_encoder(BARE_FORMATS[self.format.type], rate=self.rate, speed=self.speed)

    def output(self) -> dict[str, Any]:
        """Return ``audio.output`` as events tell it."""
        return {"format": {"type": self.format.type, "rate": self.rate}, "voice": self.voice, "speed": self.speed}


class RealtimeResponse:
    """Speaks a text, and tells it in events, from ``response.created`` to ``response.done``. Belongs to one event loop.

    Args:
        items: whose text it is.
        options: how to speak.
        asked: the same in the words of the engine.
        metadata: repeated in its events.
        add: adds what it says to the conversation; ``None``: it stays outside.
    """

    def __init__(
        self,
        items: list[ConversationItem],
        options: RealtimeOptions,
        asked: SpeechFields,
        metadata: dict[str, str] | None,
        add: Add | None,
    ) -> None:
        self.id, self.items, self.item = new_id("resp"), items, ResponseItem()
        self.task: asyncio.Task[None] | None = None
        self._options, self._asked, self._metadata, self._add = options, asked, metadata, add
        self._cancelled = self._begun = False
        self._beginning: asyncio.Timeout | None = None
        self._session: UtteranceSession | None = None
        self._incomplete: IncompleteSpeechError | None = None

    def cancel(self) -> None:
        """End it now: no audio is told any more."""
        self._cancelled = True
        if self._session is not None:
            self._session.stream.cancel()
        elif self._beginning is not None:
            self._beginning.reschedule(0)

    async def speak(self, service: SpeechService, tell: Tell) -> None:
        """Speak, until all is said or it is cancelled; :meth:`end` must follow.

        Args:
            service: speaks.
            tell: sends events.

        Raises:
            MegatalkerError: as :meth:`SpeechService.begin`, or the speech failed.
        """
        await tell("response.created", response=self._shown("in_progress"))
        text = "\n".join(item.text for item in self.items)
        try:
            async with asyncio.timeout(None) as self._beginning:
                if self._cancelled:
                    return
                self._session = await service.begin(text, self._asked, "websocket", word_times=True)
        except TimeoutError:
            if not self._cancelled:
                raise
            return
        finally:
            self._beginning = None
        if self._cancelled:
            self._session.stream.cancel()
        first = await anext(self._session.stream, None)
        if not self._cancelled:
            await self._begin(tell)
            await self._send_speech(BegunSpeech(self._session, first), tell)

    async def _begin(self, tell: Tell) -> None:
        self._begun = True
        place = {"response_id": self.id, "output_index": 0}
        await tell("response.output_item.added", **place, item=self.item.shown())
        if self._add is not None:
            await self._add(self.item)
        part = {"type": "audio", "transcript": ""}
        await tell("response.content_part.added", **self._place(), part=part)

    async def _send_speech(self, speech: BegunSpeech, tell: Tell) -> None:
        options = self._options
        bytes_a_second = options.rate * (2 if options.format.type == "audio/pcm" else 1)
        try:
            async for data in audio_body(speech, options.encoder()):
                if self._cancelled:
                    continue  # to its end, which is near
                self.item.audio_ms += 1000 * len(data) / bytes_a_second
                await tell("response.output_audio.delta", **self._place(), delta=base64.b64encode(data).decode())
                await self._tell_words(speech.session, tell)
        except IncompleteSpeechError as error:
            self._incomplete = error
        await self._tell_words(speech.session, tell)

    async def _tell_words(self, session: UtteranceSession, tell: Tell) -> None:
        words = [] if self._cancelled else session.stream.take_words()
        if words:
            delta = self.item.add([WordTime.of(word, speed=self._options.speed) for word in words])
            await tell("response.output_audio_transcript.delta", **self._place(), delta=delta)

    async def end(self, tell: Tell, error: Exception | None) -> dict[str, Any]:
        """Tell the end of what was begun; return the response as ``response.done`` tells it.

        Args:
            tell: sends events.
            error: it failed.
        """
        status, told = "completed", None
        if self._cancelled:
            status = "cancelled"
        elif error is not None or self._incomplete is not None:
            status, told = "incomplete" if error is None else "failed", error or self._incomplete
        self.item.status = "completed" if status == "completed" else "incomplete"
        if self._begun:
            part = {"type": "audio", "transcript": self.item.text}
            await tell("response.output_audio.done", **self._place())
            await tell("response.output_audio_transcript.done", **self._place(), transcript=self.item.text)
            await tell("response.content_part.done", **self._place(), part=part)
            if self._add is not None:
                await tell("conversation.item.done", item=self.item.shown())
            place = {"response_id": self.id, "output_index": 0}
            await tell("response.output_item.done", **place, item=self.item.shown())
        elif status == "failed":
            for item in self.items:  # which may be spoken later
                item.spoken = isinstance(item, ResponseItem)
        return self._shown(status, told)

    def close(self) -> None:
        """Close the account of the speech, however it ended."""
        if self._session is not None:
            self._session.end()

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self.item.id, "output_index": 0, "content_index": 0}

    def _shown(self, status: str, error: Exception | None = None) -> dict[str, Any]:
        details: dict[str, Any] = {"type": status}
        if status == "cancelled":
            details["reason"] = "client_cancelled"
        if error is not None:
            details["error"] = error_details(error)
        if status == "incomplete" and self._session is not None and self._session.stream.finish_reason == "max_frames":
            details["reason"] = "max_output_tokens"
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None if status in ("in_progress", "completed") else details,
            "output": [self.item.shown()] if self._begun else [],
            "output_modalities": ["audio"],
            "audio": {"output": self._options.output()},
            "metadata": self._metadata,
            "usage": None if status == "in_progress" else NO_TOKENS,
            "megatalker": None if self._session is None else _facts(self._session),
        }


def _facts(session: UtteranceSession) -> dict[str, Any]:
    facts = session.stream.facts()
    told = {name: getattr(facts, name) for name in ("seed", "backend", "finish_reason", "unsaid_chars")}
    return {**told, "instructions": session.instruct, "warnings": session.warnings}

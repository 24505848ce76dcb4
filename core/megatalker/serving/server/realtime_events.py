"""Events of OpenAI's Realtime protocol: items, and what is told of a response, whoever speaks it."""

import base64
import itertools
import json
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from megatalker.serving.protocol.messages import SpeechFields, WordTime
from megatalker.serving.protocol.realtime_messages import BARE_FORMATS, AudioFormat, Item
from megatalker.serving.samples import default_rate
from megatalker.serving.server.encoding import Encoder, make_encoder
from megatalker.serving.server.problems import error_details

BETA = "realtime=v1"
"""The header ``OpenAI-Beta`` of clients of the beta protocol, whose events have other names."""
_BETA_NAMES = {
    "conversation.item.added": "conversation.item.created",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
SUBPROTOCOL = "realtime"
"""The subprotocol that OpenAI's clients in browsers offer."""
Tell = Callable[..., Awaitable[None]]
"""Sends an event: its type, and its fields by name."""
NO_TOKENS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
"""Tokens of a language model are not counted here."""


def new_id(kind: str) -> str:
    """Return a name that nothing else has."""
    return f"{kind}_{uuid.uuid4().hex}"


class EventWriter:
    """Writes the events of one connection.

    Args:
        beta: the client knows the names of the beta protocol only.
    """

    def __init__(self, *, beta: bool) -> None:
        self.beta = beta
        self._numbers = itertools.count(1)

    def write(self, kind: str, fields: dict[str, Any]) -> str | None:
        """Return the message; ``None`` where the beta protocol has no such event."""
        if self.beta:
            if kind == "conversation.item.done":
                return None
            kind = _BETA_NAMES.get(kind, kind)
        return json.dumps({"type": kind, "event_id": f"event_{next(self._numbers)}", **fields})


class ConversationItem:
    """An item of a conversation, whose text is spoken once.

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


Add = Callable[[ConversationItem], Awaitable[None]]
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

    @property
    def bytes_a_second(self) -> int:
        """Bytes of a second of audio."""
        return self.rate * (2 if self.format.type == "audio/pcm" else 1)

    def encoder(self) -> Encoder:
        """Return what makes the bytes of one response."""
        return make_encoder(BARE_FORMATS[self.format.type], rate=self.rate, speed=self.speed)

    def output(self) -> dict[str, Any]:
        """Return ``audio.output`` as events tell it."""
        return {"format": {"type": self.format.type, "rate": self.rate}, "voice": self.voice, "speed": self.speed}


class ToldResponse:
    """Tells a response in events, from ``response.created`` to ``response.done``. Belongs to one event loop.

    Args:
        options: how it sounds.
        metadata: repeated in its events.
        add: adds what it says to the conversation; ``None``: it stays outside.
    """

    def __init__(self, options: RealtimeOptions, metadata: dict[str, str] | None, add: Add | None) -> None:
        self.id, self.item = new_id("resp"), ResponseItem()
        self.cancelled: str | None = None
        """Why it was cancelled, in the protocol's word."""
        self.begun = False
        """Its item was told."""
        self._output: list[ConversationItem] = []
        self._index = 0
        """Place of what is spoken in the output."""
        self._options, self._metadata, self._add = options, metadata, add

    async def create(self, tell: Tell) -> None:
        """Tell that it is being made."""
        await tell("response.created", response=self.shown("in_progress"))

    async def begin(self, tell: Tell) -> None:
        """Tell its item: audio follows."""
        self.begun, self._index = True, len(self._output)
        self._output.append(self.item)
        await tell("response.output_item.added", **self._item_place(self._index), item=self.item.shown())
        if self._add is not None:
            await self._add(self.item)
        part = {"type": "audio", "transcript": ""}
        await tell("response.content_part.added", **self._place(), part=part)

    async def call(self, item: ConversationItem, arguments: str, tell: Tell) -> None:
        """Tell an item that calls a function of the client, from its beginning to its end."""
        place = self._item_place(len(self._output))
        self._output.append(item)
        begun = {**item.shown(), "status": "in_progress", "arguments": ""}
        await tell("response.output_item.added", **place, item=begun)
        if self._add is not None:
            await self._add(item)
        told = {**place, "item_id": item.id, "call_id": item.shown()["call_id"]}
        await tell("response.function_call_arguments.delta", **told, delta=arguments)
        name = item.shown()["name"]
        await tell("response.function_call_arguments.done", **told, name=name, arguments=arguments)
        if self._add is not None:
            await tell("conversation.item.done", item=item.shown())
        await tell("response.output_item.done", **place, item=item.shown())

    async def send_audio(self, data: bytes, tell: Tell) -> None:
        """Send audio in the session's format."""
        self.item.audio_ms += 1000 * len(data) / self._options.bytes_a_second
        await tell("response.output_audio.delta", **self._place(), delta=base64.b64encode(data).decode())

    async def send_words(self, words: list[WordTime], tell: Tell) -> None:
        """Send words whose audio was sent."""
        delta = self.item.add(words)
        await tell("response.output_audio_transcript.delta", **self._place(), delta=delta)

    async def end(self, tell: Tell, error: Exception | None = None, *, incomplete: bool = False) -> dict[str, Any]:
        """Tell the end of what was begun; return the response as ``response.done`` tells it.

        Args:
            tell: sends events.
            error: it failed, or is incomplete.
            incomplete: the error only cut it.
        """
        status, told = "completed", None
        if self.cancelled is not None:
            status = "cancelled"
        elif error is not None:
            status, told = "incomplete" if incomplete else "failed", error
        self.item.status = "completed" if status == "completed" else "incomplete"
        if self.begun:
            part = {"type": "audio", "transcript": self.item.text}
            await tell("response.output_audio.done", **self._place())
            await tell("response.output_audio_transcript.done", **self._place(), transcript=self.item.text)
            await tell("response.content_part.done", **self._place(), part=part)
            if self._add is not None:
                await tell("conversation.item.done", item=self.item.shown())
            await tell("response.output_item.done", **self._item_place(self._index), item=self.item.shown())
        return self.shown(status, told)

    def shown(self, status: str, error: Exception | None = None) -> dict[str, Any]:
        """Return the response as events tell it."""
        details: dict[str, Any] = {"type": status}
        if status == "cancelled":
            details["reason"] = self.cancelled
        if error is not None:
            details["error"] = error_details(error)
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None if status in ("in_progress", "completed") else details,
            "output": [item.shown() for item in self._output],
            "output_modalities": ["audio"],
            "audio": {"output": self._options.output()},
            "metadata": self._metadata,
            "usage": None if status == "in_progress" else NO_TOKENS,
        }

    def _item_place(self, index: int) -> dict[str, Any]:
        return {"response_id": self.id, "output_index": index}

    def _place(self) -> dict[str, Any]:
        return {**self._item_place(self._index), "item_id": self.item.id, "content_index": 0}

"""Answers of the agent as responses of the Realtime protocol, one at a time."""

import asyncio
import time

from megatalker.errors import MegatalkerError
from megatalker.serving.audio import from_pcm16
from megatalker.serving.protocol.messages import WordTime
from megatalker.serving.server.encoding import Encoder
from megatalker.serving.server.realtime_events import (
    Add,
    ConversationItem,
    RealtimeOptions,
    ResponseItem,
    Tell,
    ToldResponse,
)


class AnswerError(MegatalkerError):
    """A service that an answer needs has failed."""


class Answers:
    """Tells the response that is being made. Its methods may be called from several tasks of one event loop.

    Args:
        tell: sends events.
        add: adds an item to the conversation.
        conversation: its name.
    """

    def __init__(self, tell: Tell, add: Add, conversation: str) -> None:
        self.options = RealtimeOptions()
        """How responses sound that begin from now on."""
        self.active: ToldResponse | None = None
        self.last: ResponseItem | None = None
        """The item that was spoken last."""
        self._tell, self._add, self._conversation = tell, add, conversation
        self._turn = asyncio.Lock()
        self._created = False
        self._encoder: Encoder | None = None
        self._began_at = 0.0
        self._error: Exception | None = None
        self._early: list[tuple[str, bool]] = []
        """Words that came before their audio."""

    def open(self, metadata: dict[str, str] | None = None) -> ToldResponse:
        """Make a response the active one; :meth:`create` must follow."""
        assert self.active is None
        self._created = False
        self._early.clear()
        self._encoder = self.options.encoder()
        self.active = ToldResponse(self.options, metadata, self._add)
        return self.active

    async def create(self) -> None:
        """Tell the active response, unless it was told or there is none."""
        async with self._turn:
            if self.active is not None and not self._created:
                self._created = True
                await self.active.create(self._tell)

    async def call(self, item: ConversationItem, arguments: str) -> None:
        """Tell that the model calls a function of the client."""
        async with self._turn:
            if self.active is not None:
                await self.active.call(item, arguments, self._tell)

    async def audio(self, samples: bytes) -> None:
        """Tell audio, 16-bit at 24 kHz; what belongs to no response is dropped."""
        async with self._turn:
            response = self.active
            if response is None or self._encoder is None:
                return
            if not response.begun:
                self._began_at, self.last = time.monotonic(), response.item
                await response.begin(self._tell)
            if data := self._encoder.encode(from_pcm16(samples)):
                await response.send_audio(data, self._tell)
            while self._early:
                await self._send_word(response, *self._early.pop(0))

    async def word(self, text: str, *, joined: bool) -> None:
        """Tell a word that begins to be heard now."""
        async with self._turn:
            if self.active is not None and self.active.begun:
                await self._send_word(self.active, text, joined)
            elif self.active is not None:
                self._early.append((text, joined))

    async def _send_word(self, response: ToldResponse, text: str, joined: bool) -> None:
        now_s = min(time.monotonic() - self._began_at, response.item.audio_ms / 1000)
        before = " " if response.item.text and not joined else ""
        word = WordTime(word=text, before=before, start=now_s, end=now_s, joined=joined)
        await response.send_words([word], self._tell)

    def fail(self, error: Exception) -> None:
        """Remember why not all is said of the active response, or of the one that is about to begin."""
        self._error = self._error or error

    async def end(self) -> None:
        """Tell the end of the active response, if there is one."""
        async with self._turn:
            response = self.active
            if response is None:
                return
            whole = response.begun and response.cancelled is None
            if whole and self._encoder is not None and (tail := self._encoder.finish()):
                await response.send_audio(tail, self._tell)
            told = await response.end(self._tell, self._error, incomplete=response.begun)
            self.active = self._error = None
            await self._tell("response.done", response={**told, "conversation_id": self._conversation})

    async def cancel(self, reason: str) -> None:
        """End the active response before it is said."""
        self._error = None
        if self.active is not None:
            self.active.cancelled = reason
            await self.end()

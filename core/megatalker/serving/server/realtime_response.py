"""A response of ``/v1/realtime``: speaks texts of the conversation."""

import asyncio
from typing import Any

from megatalker.errors import IncompleteSpeechError
from megatalker.serving.protocol.messages import SpeechFields, WordTime
from megatalker.serving.server.audio_response import BegunSpeech, audio_body
from megatalker.serving.server.realtime_events import (
    Add,
    ConversationItem,
    RealtimeOptions,
    ResponseItem,
    Tell,
    ToldResponse,
)
from megatalker.serving.server.speech_service import SpeechService, UtteranceSession


class RealtimeResponse(ToldResponse):
    """Speaks a text, and tells it in events. Belongs to one event loop.

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
        super().__init__(options, metadata, add)
        self.items = items
        self.task: asyncio.Task[None] | None = None
        self._asked = asked
        self._beginning: asyncio.Timeout | None = None
        self._session: UtteranceSession | None = None
        self._incomplete: IncompleteSpeechError | None = None

    def cancel(self) -> None:
        """End it now: no audio is told any more."""
        self.cancelled = "client_cancelled"
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
        await self.create(tell)
        text = "\n".join(item.text for item in self.items)
        try:
            async with asyncio.timeout(None) as self._beginning:
                if self.cancelled:
                    return
                self._session = await service.begin(text, self._asked, "websocket", word_times=True)
        except TimeoutError:
            if not self.cancelled:
                raise
            return
        finally:
            self._beginning = None
        if self.cancelled:
            self._session.stream.cancel()
        first = await anext(self._session.stream, None)
        if not self.cancelled:
            await self.begin(tell)
            await self._send_speech(BegunSpeech(self._session, first), tell)

    async def _send_speech(self, speech: BegunSpeech, tell: Tell) -> None:
        try:
            async for data in audio_body(speech, self._options.encoder()):
                if self.cancelled:
                    continue  # to its end, which is near
                await self.send_audio(data, tell)
                await self._tell_words(speech.session, tell)
        except IncompleteSpeechError as error:
            self._incomplete = error
        await self._tell_words(speech.session, tell)

    async def _tell_words(self, session: UtteranceSession, tell: Tell) -> None:
        words = [] if self.cancelled else session.stream.take_words()
        if words:
            await self.send_words([WordTime.of(word, speed=self._options.speed) for word in words], tell)

    async def end(self, tell: Tell, error: Exception | None = None, *, incomplete: bool = False) -> dict[str, Any]:
        if error is None and self._incomplete is not None:
            error, incomplete = self._incomplete, True
        told = await super().end(tell, error, incomplete=incomplete)
        if told["status"] == "failed" and not self.begun:
            for item in self.items:  # which may be spoken later
                item.spoken = isinstance(item, ResponseItem)
        return told

    def close(self) -> None:
        """Close the account of the speech, however it ended."""
        if self._session is not None:
            self._session.end()

    def shown(self, status: str, error: Exception | None = None) -> dict[str, Any]:
        told = super().shown(status, error)
        session = self._session
        if status == "incomplete" and session is not None and session.stream.finish_reason == "max_frames":
            told["status_details"]["reason"] = "max_output_tokens"
        return {**told, "megatalker": None if session is None else _facts(session)}


def _facts(session: UtteranceSession) -> dict[str, Any]:
    facts = session.stream.facts()
    told = {name: getattr(facts, name) for name in ("seed", "backend", "finish_reason", "unsaid_chars")}
    return {**told, "instructions": session.instruct, "warnings": session.warnings}

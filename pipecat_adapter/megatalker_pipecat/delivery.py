"""Brings utterances into Pipecat's audio contexts: frames, words, ends, interruptions."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    AggregatedTextFrame,
    AggregatedTextProgressFrame,
    CancelFrame,
    DataFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.tts_service import TTSService
from pipecat.utils.text.base_text_aggregator import TextType

from megatalker.engine.speech.chunks import PlaybackClock
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.prompt.cleaning import clean, join_surrogates
from megatalker.prompt.control_tokens import ControlTokens
from megatalker.prompt.text import has_speech
from megatalker_pipecat.audio import silence
from megatalker_pipecat.context_speech import ContextSpeech
from megatalker_pipecat.contexts import Context, Contexts, WrittenAnswer, spoken_form

SILENCE_S = 0.02
"""Stands for the audio of a context that had nothing to say, such as an emoji. Without any audio Pipecat would take the
service for broken."""


@dataclass
class SentenceFailed(DataFrame):
    """Stands in an audio context where the rest of a sentence would; it goes no further than the service."""


class DeliveringTTSService(TTSService):
    """Base of the service that handles Pipecat's audio contexts, and knows nothing of engines."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._register_event_handler("on_backend_switched")
        self._contexts = Contexts()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._half = ""
        """First half of a character, whose other half may come with the next piece of the answer."""
        self._playback = PlaybackClock()
        """Playback of the audio handed out so far, over all contexts."""

    # ---- text from the pipeline

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Process text without halves of characters, which would make Pipecat lose the frame.

        Halves that come in two frames of an answer are joined.
        """
        if isinstance(frame, LLMTextFrame):
            text, self._half = join_surrogates(self._half + frame.text)
            frame.text = _well_formed(text)
        elif isinstance(frame, TextFrame | TTSSpeakFrame):
            frame.text = _well_formed(frame.text)
        elif isinstance(frame, LLMFullResponseEndFrame | EndFrame | InterruptionFrame):
            self._half = ""
            if not isinstance(frame, InterruptionFrame):
                await self._register_end_of_answer()
        await super().process_frame(frame, direction)

    @property
    @abstractmethod
    def _cleans_text(self) -> bool:
        """Whether the engine cleans the text."""

    @abstractmethod
    def _control_tokens(self) -> ControlTokens:
        """Return the control tokens that it removes then, as far as they are known."""

    async def _register_spoken_text(self, src_frame: AggregatedTextFrame, text: str, context_id: str) -> None:
        """Register the text as it is spoken, so that Pipecat finds the reported words in it.

        The conversation records the text as it was written.
        """
        if self._cleans_text and src_frame.text_type == TextType.TOKEN:
            context = self._contexts.get(context_id)
            if context.answer is None:
                context.answer = WrittenAnswer(self._control_tokens())
            context.answer.feed(src_frame, text)
            await self._register_answer(context.answer, context_id)
            return
        if self._cleans_text and has_speech(text):
            text = spoken_form(text, clean(text, self._control_tokens()))
        await super()._register_spoken_text(src_frame, text, context_id)

    async def _register_answer(self, answer: WrittenAnswer, context_id: str, *, complete: bool = False) -> None:
        if (found := answer.take(complete=complete)) is not None:
            await super()._register_spoken_text(*found, context_id)

    async def _register_end_of_answer(self) -> None:
        context_id = self._turn_context_id
        context = None if context_id is None else self._contexts.find(context_id)
        if context_id is not None and context is not None and context.answer is not None:
            await self._register_answer(context.answer, context_id, complete=True)

    # ---- one utterance

    async def _frames(
        self, utterance: ContextSpeech, context_id: str, context: Context
    ) -> AsyncGenerator[TTSAudioRawFrame, None]:
        """The audio of an utterance; words are reported after their audio was taken. Closing it ends the utterance."""
        try:
            async for piece in utterance:
                for switch in piece.switches:
                    logger.warning(f"the speech goes on elsewhere: {switch}")
                    await self._call_event_handler("on_backend_switched", switch)
                if piece.audio:
                    yield self._audio_frame(piece.audio, context_id, context)
                for word in piece.words:
                    await self._report_word(word, context_id, context)
            if utterance.complete and not context.spoken:
                yield self._silent_frame(context_id, context)
        finally:
            utterance.cancel()  # of no effect when it was spoken to its end
            context.seconds += utterance.seconds

    def _silent_frame(self, context_id: str, context: Context) -> TTSAudioRawFrame:
        context.seconds += SILENCE_S
        return self._audio_frame(silence(self.sample_rate, SILENCE_S), context_id, context)

    def _audio_frame(self, audio: bytes, context_id: str, context: Context) -> TTSAudioRawFrame:
        context.spoken = True
        self._playback.deliver(time.monotonic(), len(audio) / (2 * self.sample_rate))
        return TTSAudioRawFrame(audio, self.sample_rate, 1, context_id=context_id)

    async def _report_word(self, word: SpokenWord, context_id: str, context: Context) -> None:
        await self.add_word_timestamps(
            [(word.text, context.seconds + word.begins_s)], context_id, includes_inter_frame_spaces=word.joined
        )

    @contextmanager
    def _kept_open(self, context_id: str) -> Iterator[None]:
        """Pipecat gives up on a context that is quiet for long; this one is being spoken in, however slowly."""
        loop, every = asyncio.get_running_loop(), self._stop_frame_timeout_s / 3
        timers: list[asyncio.TimerHandle] = []

        def beat() -> None:
            self._refresh_audio_context(context_id)
            timers[:] = [loop.call_later(every, beat)]

        beat()
        try:
            yield
        finally:
            timers.pop().cancel()

    # ---- TOKEN mode: text comes in here, audio goes out there

    def _start_delivery(self, utterance: ContextSpeech, context_id: str, context: Context) -> None:
        self._keep(self._deliver(utterance, context_id, context), f"speech of {context_id}")

    def _run_after_deliveries(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` when everything that is being delivered now has been."""
        deliveries = asyncio.gather(*self._deliveries, return_exceptions=True)  # Pipecat logs each by itself

        async def wait_and_work() -> None:
            await deliveries
            await work

        self._keep(wait_and_work(), "what follows speech")

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.create_task(work, name)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _deliver(self, utterance: ContextSpeech, context_id: str, context: Context) -> None:
        with self._kept_open(context_id):
            try:
                async with aclosing(self._frames(utterance, context_id, context)) as frames:
                    async for frame in frames:
                        await self.append_to_audio_context(context_id, frame)
            except Exception as error:
                context.failed = True
                await self._report_failure(error)
        context.over = True
        if context.text_ended:
            await self._close_context(context_id)

    @abstractmethod
    async def _report_failure(self, error: Exception) -> None:
        """Push an error upstream: some text could not be spoken."""

    # ---- what was not spoken

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Push a frame; a failed sentence is over once everything spoken of it is downstream."""
        if not isinstance(frame, SentenceFailed):
            await super().push_frame(frame, direction)
            return
        for released in self._aggregated_frame_sequencer.complete_spoken_slot():
            await super().push_frame(released, direction)

    async def _apply_force_complete(self, context_id: str) -> None:
        """Pipecat takes text without word times for spoken when its context ends: not where something failed."""
        context = self._contexts.find(context_id)
        if context is not None and not context.failed:
            await super()._apply_force_complete(context_id)
            return
        last_pts = self._word_timestamp_tracker.last_pts
        for frame in self._aggregated_frame_sequencer.force_complete(context_id, last_pts):
            if not isinstance(frame, TTSTextFrame | AggregatedTextProgressFrame):
                await self.push_frame(frame)

    # ---- ends of contexts

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The text of the context is complete: what is left of it is spoken, then the context ends."""
        if context_id is None:
            return
        context = self._contexts.find(context_id)
        if self._is_streaming_tokens and context is not None and context.utterance is not None and not context.over:
            context.text_ended = True
            context.utterance.end_text()
        elif not self._is_yielding_frames_synchronously:  # else the base class has closed it
            await self._close_context(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        """All audio of the context is downstream."""
        self._contexts.drop(context_id)
        await super().on_audio_context_completed(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Drop the context: its speech is cancelled, without waiting."""
        self._contexts.drop(context_id)
        self._playback = PlaybackClock()
        await super().on_audio_context_interrupted(context_id)

    async def stop(self, frame: EndFrame) -> None:
        """Speak everything begun to its end: no text follows."""
        for context_id in self._contexts.ids():
            await self.flush_audio(context_id)
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """End all speech now."""
        self._drop_contexts()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """End all speech, and wait until nothing runs."""
        self._drop_contexts()
        await asyncio.gather(*self._deliveries)
        await super().cleanup()

    def _drop_contexts(self) -> None:
        for context_id in self._contexts.ids():
            self._contexts.drop(context_id)

    async def _close_context(self, context_id: str) -> None:
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)


def _well_formed(text: str) -> str:
    """Replace each half of a character by U+FFFD, which is spoken as a space."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

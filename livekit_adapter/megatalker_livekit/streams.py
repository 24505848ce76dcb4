"""One utterance each: the framework's text to a stream of the engine, the engine's chunks to the framework.

Retries, metrics and the size of audio frames are the framework's. Whatever ends ``_run``, an interruption too, cancels
the engine's stream, whose rows are free within a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from livekit.agents import APIConnectOptions, APITimeoutError, tts, utils
from livekit.agents.types import TimedString

from megatalker import FRAME_SECONDS
from megatalker.engine.speech.outputs import require_complete
from megatalker.engine.speech.protocols import Speech
from megatalker.errors import IncompleteSpeechError, InvalidRequestError, MarkupError, MegatalkerError
from megatalker.prompt.text import has_speech
from megatalker.serving.background import start_task
from megatalker.serving.samples import SampleEncoder
from megatalker_livekit.errors import api_error

if TYPE_CHECKING:
    from megatalker_livekit.tts import TTS

SILENCE_S = 0.02
"""Stands for the audio of a text that holds nothing to say, such as an emoji: without any the framework would take it
for a failure, and try again."""


class EmittedSpeech:
    """Speech of the engine on its way into an audio emitter."""

    def __init__(self, owner: TTS, emitter: tts.AudioEmitter, timeout_s: float, *, stream: bool) -> None:
        """``timeout_s``: how long the engine may be silent once it has all the text."""
        self._owner, self._emitter, self._timeout_s = owner, emitter, timeout_s
        self._options = replace(owner.options, word_times=True)
        self._patience = asyncio.timeout(None)
        self._complete = False
        emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=owner.sample_rate,
            num_channels=owner.num_channels,
            mime_type="audio/pcm",
            frame_size_ms=round(1000 * FRAME_SECONDS),
            stream=stream,
        )

    @asynccontextmanager
    async def open(self, text: str | None) -> AsyncIterator[Speech]:
        """A stream of the engine, which ends with the block; errors leave the block as the framework's.

        Args:
            text: what to say, ``None``: it will be fed.

        Raises:
            APIError: the engine cannot be loaded, or cannot speak.
        """
        lease = self._owner.lease()
        try:
            async with await lease.speak(text, self._options) as speech:
                yield speech
        except MegatalkerError as error:
            replaced = self._owner.give_up(lease, error)
            raise api_error(error, again=replaced and not self._heard) from error

    async def play(self, speech: Speech, *, complete: bool = False) -> None:
        """Push everything that the engine says. ``complete``: it has all the text.

        Raises:
            APITimeoutError: it has all the text, and has said nothing for too long.
            APIError: the speech is over and leaves out some of its text. What was spoken has been handed over. Where a
                setting bounds it (``max_frames``), the event ``error`` says so instead.
        """
        samples, told, encoder = 0, 0, SampleEncoder(rate=self._owner.sample_rate)
        try:
            async with self._patience:
                if complete:
                    self.expect_speech()
                async for chunk in speech:
                    self._tell_words(speech)  # they go with the next audio that is pushed
                    if data := encoder.encode(chunk.pcm):
                        self._emitter.push(data)
                    samples += len(chunk.pcm)
                    self._wait_anew()
                    for switch in speech.switches[told:]:
                        told += 1
                        self._owner.emit("backend_switched", switch)
        except TimeoutError:
            message = f"no speech for {self._timeout_s:g} s although the text is complete; is the engine overloaded?"
            raise APITimeoutError(message, retryable=not self._heard) from None
        self._tell_words(speech)
        if rest := encoder.finish():
            self._emitter.push(rest)
        if speech.finish_reason == "eos" and not samples:
            self.say_nothing()
            return
        try:
            require_complete(speech.facts())
        except IncompleteSpeechError as error:
            if speech.finish_reason == "max_frames":
                self._owner.report(error)
                return
            if samples:
                self._emitter.end_input()
                await self._emitter.join()  # what is left in it is dropped when an attempt fails
            raise api_error(error, again=not self._heard) from error

    def _tell_words(self, speech: Speech) -> None:
        words = speech.take_words()
        if words:
            timed = [TimedString(one.before + one.text, start_time=one.begins_s, end_time=one.ends_s) for one in words]
            self._emitter.push_timed_transcript(timed)

    def say_nothing(self) -> None:
        """Push a moment of silence instead of speech."""
        self._emitter.push(bytes(2 * round(SILENCE_S * self._owner.sample_rate)))

    def expect_speech(self) -> None:
        """Begin to wait for speech: the engine has all the text."""
        self._complete = True
        self._wait_anew()

    @property
    def _heard(self) -> bool:
        """The consumer has had audio; what the emitter still holds is dropped when an attempt fails."""
        return self._emitter.pushed_duration() > 0

    def _wait_anew(self) -> None:
        if self._complete:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._timeout_s)


class ChunkedStream(tts.ChunkedStream):
    """Speaks a text that is complete; made by :meth:`TTS.synthesize`."""

    def __init__(self, owner: TTS, text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, input_text=text, conn_options=conn_options)
        self._owner = owner

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        utterance = EmittedSpeech(self._owner, output_emitter, self._conn_options.timeout, stream=False)
        if not has_speech(self.input_text):
            utterance.say_nothing()
            return
        async with utterance.open(self.input_text) as speech:
            await utterance.play(speech, complete=True)


class SynthesizeStream(tts.SynthesizeStream):
    """Speaks a text while it is being written; made by :meth:`TTS.stream`."""

    def __init__(self, owner: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, conn_options=conn_options)
        self._owner = owner

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        utterance = EmittedSpeech(self._owner, output_emitter, self._conn_options.timeout, stream=True)
        text = self._text()
        first = await anext(text, None)
        if first is None:
            return
        self._mark_started()
        output_emitter.start_segment(segment_id=utils.shortuuid())
        async with utterance.open(None) as speech:
            self._feed(first, speech)
            failures: list[BaseException] = []

            def give_up(error: BaseException) -> None:
                failures.append(error)
                speech.cancel()  # it would wait for text for ever

            feeding = start_task(self._feed_rest(text, speech, utterance), "megatalker-feeding", give_up)
            try:
                await utterance.play(speech)
            finally:
                await utils.aio.cancel_and_wait(feeding)
            if failures:
                raise failures[0]

    async def _text(self) -> AsyncIterator[str]:
        """The pieces of the one segment there is; a flush ends it."""
        begun = False
        async for item in self._input_ch:
            if isinstance(item, str):
                begun = True
                yield item
            elif begun:
                return

    async def _feed_rest(self, text: AsyncIterator[str], speech: Speech, utterance: EmittedSpeech) -> None:
        async for piece in text:
            self._feed(piece, speech)
        speech.finish()
        utterance.expect_speech()

    def _feed(self, piece: str, speech: Speech) -> None:
        try:
            speech.feed(piece)
        except MarkupError:  # the speech is over, and raises it
            return
        except InvalidRequestError as error:  # the speech goes on without this piece
            self._owner.report(error)

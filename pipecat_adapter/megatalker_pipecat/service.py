"""The text-to-speech service: Pipecat's text in, speech of a shared engine out."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

from loguru import logger
from pipecat.frames.frames import Frame
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.settings import ServiceSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.tracing.service_decorators import traced_tts

import megatalker
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import ConnectionFailedError, InvalidRequestError, MarkupError
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.prompt.text import has_speech
from megatalker.serving.shared_engines.pool import EnginePool, Lease
from megatalker.serving.shared_engines.source import LeasedEngine, Source, check
from megatalker_pipecat.arguments import sort_arguments
from megatalker_pipecat.audio import Sound
from megatalker_pipecat.context_speech import ContextSpeech
from megatalker_pipecat.contexts import Context
from megatalker_pipecat.delivery import DeliveringTTSService, SentenceFailed
from megatalker_pipecat.errors import category_of, category_of_text
from megatalker_pipecat.languages import name_of, recognised
from megatalker_pipecat.settings import MegatalkerTTSSettings

SLOW_LOAD_S = 5.0
"""A pipeline that waits longer than this for an engine is told how to avoid it."""
WARM_UP_S = 10.0
"""A pipeline waits this long for an engine to be warm; Pipecat gives a pipeline 20 s by default."""
PRELOAD = (
    "load the engine before the pipeline with `await MegatalkerTTSService.preload(...)`, "
    "or give PipelineWorker a longer setup_timeout_secs"
)


class MegatalkerTTSService(DeliveringTTSService):
    """Qwen3-TTS through megatalker, in this process or on a server.

    In this process, all services with the same engine settings share one engine: it is loaded off the event loop while
    the pipeline is set up, and closed when the last of them is cleaned up. To load it before, and keep it between
    sessions, see :meth:`preload`.

    ``SENTENCE`` mode speaks sentence by sentence. ``TOKEN`` mode feeds the model each piece of the language model's
    answer as it comes; the first word is heard sooner, and a turn keeps the settings it began with.

    Word timestamps are estimates (:mod:`megatalker.engine.speech.word_times`).

    Events, besides those of ``TTSService``:
        on_backend_switched(service, switch): a backend failed in the middle of speech, which goes on on another; see
            :class:`megatalker.engine.BackendSwitch`.
    """

    Settings = MegatalkerTTSSettings
    _settings: MegatalkerTTSSettings

    engines: ClassVar[EnginePool] = EnginePool()
    """The engines of this process. The only state that services share; a subclass may have a pool of its own."""

    def __init__(
        self,
        *,
        engine_settings: megatalker.Settings | None = None,
        engine: SpeechEngine | None = None,
        server_url: str | None = None,
        settings: MegatalkerTTSSettings | None = None,
        sample_rate: int | None = None,
        text_aggregation_mode: TextAggregationMode | None = None,
        voices: Mapping[str, megatalker.Voice] | None = None,
        **given: Any,
    ) -> None:
        """Load nothing: ``setup`` does that.

        Args:
            engine_settings: The engine to share; by default read from the environment and ``megatalker.toml``.
            engine: An ``Engine`` or ``RemoteEngine`` of your own instead. You close it, after the sessions that use it.
            server_url: A running ``megatalker serve`` instead, such as ``http://localhost:8000``.
            settings: What may change while the service speaks. ``backend`` and ``checkpoint`` in it win over
                ``engine_settings``.
            sample_rate: By default the pipeline's ``audio_out_sample_rate``. The engine makes 24 kHz.
            text_aggregation_mode: ``TextAggregationMode.SENTENCE`` (default) or ``TOKEN``.
            voices: Cloned or designed voices by the name that ``settings.voice`` calls them.
            **given: For ``TTSService``. ``voice``, ``voice_id``, ``model`` and ``language`` are short for the fields of
                ``settings``.

        Raises:
            SettingsError: An impossible combination or value, or an unknown setting in environment or file.
            TypeError: An argument that neither we nor Pipecat know, such as another service's ``api_key``.
        """
        settings, for_pipecat = sort_arguments(type(self), settings, given)
        self._source = Source(self.engines, engine_settings, engine, server_url)
        complete = self.Settings.complete(self._source.settings)
        if settings is not None:
            settings = self.Settings.own(settings)
            settings.check()
            complete.apply_update(settings)
        complete.check()
        complete.language = recognised(complete.language)
        self._voices = dict(voices or {})
        self._known_tokens: tuple[megatalker.Engine, ControlTokens] | None = None
        super().__init__(
            push_start_frame=True,
            push_stop_frames=True,
            push_text_frames=False,
            text_aggregation_mode=text_aggregation_mode,
            sample_rate=sample_rate,
            settings=complete,
            **for_pipecat,
        )

    @classmethod
    async def preload(
        cls, engine_settings: megatalker.Settings | None = None, *, settings: MegatalkerTTSSettings | None = None
    ) -> Lease:
        """Load and warm up the engine that services with these arguments will share, off the event loop.

        A first load takes from seconds to minutes, longer than a pipeline waits for its processors by default. Call
        this before the first pipeline. The engine stays until the lease is released and the last session has left; a
        lease that nobody releases keeps it for the life of the process.

        Raises:
            MegatalkerError: The engine cannot be loaded; the message says why.
        """
        source = Source(cls.engines, engine_settings, None, None)
        wanted = cls.Settings.complete(source.settings)
        if settings is not None:
            settings = cls.Settings.own(settings)
            settings.check()
            wanted.apply_update(settings)
        return (await source.find(*wanted.engine_choice())).lease

    def can_generate_metrics(self) -> bool:
        """TTFB, TTFA, usage and, in ``SENTENCE`` mode, processing time."""
        return True

    def language_to_service_language(self, language: Language) -> str:
        """The checkpoint's name of the language; ``auto``, with a warning, for one that it does not name."""
        return name_of(language)

    # ---- life

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]  # as Pipecat's own do
        """Get the engine, and check that it can speak with these settings, before the bot is ready.

        A long warm-up, such as the first on a machine, is not waited for: speech begins when it is over.

        Raises:
            MegatalkerError: It cannot; Pipecat reports that as a permanent error.
        """
        await super().setup(setup)
        reminder = asyncio.get_running_loop().call_later(
            SLOW_LOAD_S, logger.warning, f"{self}: still loading {self._source}; {PRELOAD}"
        )
        try:
            began = time.monotonic()
            found = await self._source.find(*self._settings.engine_choice(), warm=False)
            await self._adopt(found)
            await check(found.lease, self._settings.options(self._voices))
            try:
                async with asyncio.timeout(max(0.0, WARM_UP_S - (time.monotonic() - began))):
                    await found.lease.warm()
            except TimeoutError:
                logger.warning(f"{self}: {self._source} still warms up, and speaks when it is ready; {PRELOAD}")
        except asyncio.CancelledError:
            logger.error(f"{self}: {self._source} was not ready when the pipeline stopped waiting for it; {PRELOAD}")
            raise
        except ConnectionFailedError as error:  # the server may be back when there is something to say
            await self.push_error(f"cannot speak for now: {error}", exception=error)
        finally:
            reminder.cancel()

    async def cleanup(self) -> None:
        """Give the engine back. It is closed if no other session uses it."""
        await super().cleanup()
        await self._source.leave()

    async def _lease(self) -> Lease:
        """The engine for the settings in force."""
        found = await self._source.find(*self._settings.engine_choice())
        await self._adopt(found)
        return found.lease

    async def _adopt(self, found: LeasedEngine) -> None:
        """Speak with this engine from now on; the one before is given back when nobody speaks with it any more."""
        before = self._source.adopt(found)
        if before is not None:
            self._run_after_deliveries(before.release())

    # ---- settings

    async def _update_settings(self, delta: ServiceSettings) -> dict[str, Any]:
        """Apply changes that the engine agrees to; otherwise nothing changes, and an error says why."""
        own = self.Settings.own(delta)
        try:
            own.check()
            own.language = recognised(own.language)
            wanted = self._settings.copy()
            wanted.apply_update(own)
            if isinstance(wanted.language, Language):
                wanted.language = self._service_language(wanted.language)
            found = await self._source.find_checked(wanted.options(self._voices), *wanted.engine_choice())
        except Exception as error:
            category = category_of(error)
            await self.push_error(
                f"settings stay as they were: {error}",
                exception=error,
                category=ErrorCategory.APPLICATION if category is ErrorCategory.INVALID_REQUEST else category,
            )
            return {}
        await self._adopt(found)
        changed = await super()._update_settings(own)
        self._warn_unhandled_updated_settings(own.extra.keys() & changed.keys())
        return changed

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        return category_of(exception)

    # ---- speech

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Speak a sentence, or take one more piece of a turn's text in ``TOKEN`` mode.

        Args:
            text: What to say.
            context_id: The audio context to say it in.

        Yields:
            Audio frames; ``None`` in ``TOKEN`` mode, whose audio goes into the context by itself.
        """
        context = self._contexts.get(context_id)
        await self.start_tts_usage_metrics(text)
        if self._is_streaming_tokens:
            await self._take_token(text, context_id, context)
            yield None
        elif has_speech(text):
            async with aclosing(self._sentence(text, context_id, context)) as frames:
                async for frame in frames:
                    yield frame
        else:
            if not context.spoken:
                yield self._silent_frame(context_id, context)
            await self._report_word(SpokenWord(text, begins_s=0.0, ends_s=0.0), context_id, context)

    @property
    def _cleans_text(self) -> bool:
        return bool(self._settings.clean_text)

    def _control_tokens(self) -> ControlTokens:
        found = self._source.current
        engine = None if found is None else found.lease.engine
        if not isinstance(engine, megatalker.Engine):
            return ControlTokens()  # a server's are unknown here
        if self._known_tokens is None or self._known_tokens[0] is not engine:
            self._known_tokens = engine, ControlTokens(control_tokens(engine.checkpoint.tokenizer))
        return self._known_tokens[1]

    async def _sentence(self, text: str, context_id: str, context: Context) -> AsyncGenerator[Frame, None]:
        with self._kept_open(context_id):
            try:
                utterance = await self._begin(text, context_id, context)
                async with aclosing(self._frames(utterance, context_id, context)) as frames:
                    async for frame in frames:
                        yield frame
            except Exception as error:
                context.failed = True
                await self._report_failure(error)
                yield SentenceFailed()

    async def _take_token(self, text: str, context_id: str, context: Context) -> None:
        if context.over:
            return
        try:
            if context.utterance is None:
                with self._kept_open(context_id):
                    utterance = await self._begin(None, context_id, context)
                self._start_delivery(utterance, context_id, context)
            else:
                utterance = context.utterance
            utterance.feed(text)
        except MarkupError:  # its speech is over and tells why
            context.over = context.failed = True
        except InvalidRequestError as error:
            context.failed = True  # what has no word times is not known to be spoken
            await self._report_failure(error)  # the turn goes on without this piece
        except Exception as error:
            context.over = context.failed = True
            await self._report_failure(error)

    async def _begin(self, text: str | None, context_id: str, context: Context) -> ContextSpeech:
        """Open a stream of the engine for the context, once playback is near enough."""
        options = replace(self._settings.options(self._voices), word_times=True)
        limit = options.max_ahead_s
        if limit is not None:
            # Half of the lead may be left from what was said before, so that the next utterance has time to begin.
            await asyncio.sleep(max(0.0, self._playback.ahead(time.monotonic()) - limit / 2))
            lead = limit - max(0.0, self._playback.ahead(time.monotonic()))
            options = replace(options, max_ahead_s=lead)
        lease = await self._lease()
        speech = await lease.speak(text, options)
        sound = Sound(self.sample_rate, trim=not context.spoken)
        context.utterance = ContextSpeech(speech, sound)
        if self._contexts.find(context_id) is not context:  # interrupted meanwhile
            context.utterance.cancel()
        return context.utterance

    async def _report_failure(self, error: Exception) -> None:
        """Push what went wrong. An engine of this process that is gone for good makes the service unusable."""
        gone = self._source.is_gone(error)
        if gone and (before := self._source.give_up()) is not None:
            await before.release()
        await self.push_error(
            f"cannot speak: {error}",
            exception=error,
            category=category_of_text(error),
            force_treat_as_permanent=gone,
        )

"""Utterances of the one engine: from the options of a request to a stream, and its end."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any, Literal, NoReturn

from opentelemetry import trace

from megatalker.engine import SpeechStream
from megatalker.engine.speech.options import SpeechOptions, random_seed
from megatalker.engine.speech.outputs import Continuation, require_complete
from megatalker.errors import BackendFaultError, InvalidRequestError, MegatalkerError
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.prompt.rewriting.lexicon_files import LexiconFolder
from megatalker.sampling import SamplingParams
from megatalker.serving.background import named_pool, start_task
from megatalker.serving.protocol.messages import InstructFate, SpeechFields
from megatalker.serving.protocol.voice_files import decode_voice
from megatalker.serving.server.callers import OwnerBuckets, Turns, current_request
from megatalker.serving.server.checks import QUICK_CHARS, Checks
from megatalker.serving.server.lazy_engine import ServedEngine
from megatalker.serving.server.problems import DrainingError, NotReadyError, UnknownVoiceError
from megatalker.serving.server.references import ReferenceVoices
from megatalker.serving.server.telemetry import Metrics, Route, log_event
from megatalker.settings import ServerSettings
from megatalker.voices import Voice
from megatalker.voices.cache import VoiceCache
from megatalker.voices.library import VoiceLibrary

logger = logging.getLogger(__name__)


class UtteranceSession:
    """One utterance over HTTP or a WebSocket, from its request to its end: the stream, and the account of it.

    Made by :meth:`SpeechService.begin`; :meth:`end` must follow. It is an OpenTelemetry span within that of the
    request, which FastAPI makes.

    Raises:
        LimitError: the caller or its connection may have no further utterance now.
    """

    stream: SpeechStream

    def __init__(self, service: "SpeechService", text: str | None, asked: SpeechFields, route: Route) -> None:
        self._context = current_request()
        self._context.take_stream()
        self.service, self.text, self.asked, self._route = service, text, asked, route
        self._span = trace.get_tracer("megatalker").start_span(
            "speak", attributes={"megatalker.route": route, "megatalker.request_id": self._context.id}
        )
        self.warnings: tuple[str, ...] = ()
        """Reasons why the recording in the request is a poor reference."""

    @property
    def instruct(self) -> InstructFate | None:
        """Whether the instruction of the request is followed; ``None`` where it has none."""
        if not (self.asked.instruct or "").strip():
            return None
        return "followed" if self.service.engine.checkpoint.config.takes_instruct else "ignored"

    async def feed(self, text: str) -> None:
        """Append text as :meth:`SpeechStream.feed <megatalker.engine.SpeechStream.feed>` does, in another thread if its
        check may take long: to write out 20,000 digits takes a second.
        """
        if self.service.is_quick(text, self.asked):
            self.stream.feed(text)
        else:
            await self.service.checks.run(lambda: self.stream.feed(text))

    def require_complete(self) -> None:
        """Raise ``IncompleteSpeechError`` unless the speech, which is over, holds all text that it was to hold."""
        require_complete(self.stream.facts(), bound_asked=self.asked.max_frames is not None)

    def refuse(self, error: BaseException) -> None:
        """Close the account of an utterance that the engine did not take."""
        self._context.give_stream_back()
        self._span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._span.end()

    def end(self) -> None:
        """Stop the stream, and count and log the utterance: it is over, or its client is gone."""
        self.stream.cancel()
        self.service.running.remove(self)
        self._context.give_stream_back()
        stream, facts = self.stream, self.stream.facts()
        self.service.metrics.ended(stream, self._route, whole_text=self.text is not None)
        fields: dict[str, Any] = {
            "route": self._route,
            "key": self._context.caller.name,
            "voice": self.asked.voice,
            "text_chars": stream.text_chars,
            "queue_wait_s": _rounded(facts.queue_wait_s),
            "ttfc_s": _rounded(facts.ttfc_s),
            "rtf": _rounded(facts.rtf),
            "frames": facts.frames,
            "underruns": facts.underruns,
            "backend": facts.backend,
            "codec": facts.codec,
            "switches": len(facts.switches),
            "finish_reason": facts.finish_reason,
            "unsaid_chars": facts.unsaid_chars,
            "error": None if stream.error is None else type(stream.error).__name__,
            "request_id": self._context.id,
        }
        log_event("utterance", **fields)
        for name, at in (("prefilled", stream.prefilled_at), ("first chunk", stream.first_delivered_at)):
            if at is not None:
                self._span.add_event(name, timestamp=_since_1970(at))
        self._span.set_attributes({f"megatalker.{name}": value for name, value in fields.items() if value is not None})
        if stream.error is not None:
            self._span.set_status(trace.StatusCode.ERROR, str(stream.error))
        self._span.end()


def _since_1970(at: float) -> int:
    """A time of the monotonic clock, in nanoseconds of the other."""
    return time.time_ns() - int((time.monotonic() - at) * 1e9)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


TOLD_VOICES = 20
"""Voices that an error names."""
ENCODERS = 4
"""Threads that encode speech. What takes the event loop a millisecond takes 3 ms at p95 beside four of them, 16 beside
eight, 50 beside twenty, and they encode no more (two cores)."""
OWNER_ERRORS = 200
"""Error events of all connections of an owner, and as many more each second; each takes up to a millisecond."""
_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))


class SpeechService:
    """The engine as the routes see it: begins utterances when it is warm, keeps account of them until they end.

    Args:
        engine: maybe not open yet.
        voices: the voices that the server keeps.
        cache: of voices that requests bring along.
        settings: the server's.
    """

    def __init__(
        self, engine: ServedEngine, voices: VoiceLibrary, cache: VoiceCache[Voice], settings: ServerSettings
    ) -> None:
        self.engine, self.voices, self.metrics = engine, voices, Metrics(engine)
        self._cache, self._lexicons = cache, LexiconFolder(voices.folder)
        self.references = ReferenceVoices(voices, engine.settings, settings)
        self.checks = Checks()
        self.encoders = named_pool("encode", ENCODERS)
        """Not the threads of checks, so that texts that wait do not delay the encoding of speech, nor the reverse."""
        self.running: set[UtteranceSession] = set()
        """Utterances that have begun and not ended."""
        self.turns = Turns()
        self.socket_errors = OwnerBuckets(OWNER_ERRORS, OWNER_ERRORS)
        """Error events on WebSockets."""
        self.draining = False
        """Running utterances are finished, and no others are begun."""
        self._warm = settings.lazy
        """Requests are taken; a lazy one makes the first wait."""
        self._warming: asyncio.Task[None] | None = None
        self._beginning = 0
        self._failure: MegatalkerError | None = None

    def begin_warm_up(self) -> None:
        """Warm the engine up, once; :attr:`ready` or :attr:`failure` says what comes of it."""
        if self._warming is None:
            self._warming = start_task(self._warm_up(), "warm-up")

    async def warm_up_over(self) -> None:
        """Wait for the end of what :meth:`begin_warm_up` began, if anything."""
        if self._warming is not None:
            await asyncio.shield(self._warming)

    async def _warm_up(self) -> None:
        try:
            await asyncio.to_thread(self.engine.warmup)
        except asyncio.CancelledError:
            raise
        except MegatalkerError as error:
            self._failure = error
        except BaseException as error:  # whatever a plug-in, a library or the machine comes up with
            logger.critical("the engine cannot be opened", exc_info=True)
            self.metrics.background.failed("warm-up", f"it failed ({type(error).__name__})")
            self._failure = BackendFaultError(
                f"the engine cannot be opened ({type(error).__name__}); the server's log says more"
            )
            self._failure.__cause__ = error
        else:
            self._warm = True

    @property
    def failure(self) -> MegatalkerError | None:
        """Why every request is refused for good."""
        return self._failure or self.engine.failure

    @property
    def status(self) -> Literal["failed", "warming up", "draining", "ready"]:
        """Whether it serves, and why not."""
        if self.failure is not None:
            return "failed"
        if not self._warm:
            return "warming up"
        return "draining" if self.draining else "ready"

    @property
    def ready(self) -> bool:
        """Whether the engine is warm and serves."""
        return self.status == "ready"

    @property
    def loading(self) -> bool:
        """Whether the engine loads and warms up, which cannot be interrupted."""
        return self._warming is not None and not self._warming.done()

    @property
    def busy(self) -> bool:
        """Whether utterances run, or are being begun."""
        return bool(self.running or self._beginning)

    async def begin(
        self,
        text: str | None,
        asked: SpeechFields,
        route: Route,
        *,
        return_codes: bool = False,
        word_times: bool = False,
        after: Continuation | None = None,
    ) -> UtteranceSession:
        """Begin an utterance; :meth:`UtteranceSession.end` must follow.

        Raises:
            NotReadyError: during warm-up.
            DrainingError: the server is about to stop.
            LimitError: the caller has reached its limit.
            MegatalkerError: as :meth:`megatalker.engine.Engine.speak`.
        """
        self._refuse_unless_serving()
        self._beginning += 1
        try:
            await self._warmed_up()
            return await self._begin(text, asked, route, return_codes=return_codes, word_times=word_times, after=after)
        finally:
            self._beginning -= 1

    async def check(self, asked: SpeechFields) -> None:
        """Raise what :meth:`begin` would raise for these options; nothing is spoken."""
        self._refuse_unless_serving()
        await self._warmed_up()
        await self.checks.run(lambda: self.engine.check(self._options(asked)))

    async def _begin(self, text: str | None, asked: SpeechFields, route: Route, **wanted: Any) -> UtteranceSession:
        session = UtteranceSession(self, text, asked, route)
        try:
            if asked.voice is not None and self.voices.lacks(asked.voice):
                await self.checks.run(self.voices.look_again)
            reference = await self.references.voice(current_request().owner, asked)
            voice = None if reference is None else reference.voice
            if self.is_quick(text, asked) and self._is_at_hand(asked):
                session.stream = self._speak(text, asked, voice, wanted)
            else:
                session.stream = await self.checks.run(lambda: self._speak(text, asked, voice, wanted))
        except BaseException as error:
            session.refuse(error)
            raise
        session.warnings = () if reference is None else reference.warnings
        self.running.add(session)
        return session

    async def count_tokens(self, text: str) -> int:
        """Count the tokens of a text in a thread, since a long one takes time."""
        return len((await self.checks.run(lambda: self.engine.checkpoint.tokenizer.encode(text))).ids)

    def is_quick(self, text: str | None, asked: SpeechFields) -> bool:
        """Whether a text is checked within half a millisecond: it is short, and spoken as it is written."""
        markup = asked.markup or self.engine.settings.markup
        if (asked.normalize or self.engine.settings.normalize) == "on" or asked.lexicon or markup != "none":
            return False
        return len(text or "") + len(asked.instruct or "") <= QUICK_CHARS

    def close(self) -> None:
        """Stop the pools of threads: no utterance begins or is encoded any more. Running work is finished."""
        self.checks.close()
        self.encoders.shutdown(wait=False)

    def _refuse_unless_serving(self) -> None:
        if not self._warm and self.failure is None:
            raise NotReadyError("the server is still warming up; try again when GET /ready answers 200")
        if self.draining:
            raise DrainingError("the server is about to stop and begins nothing new; ask another one, or later")

    async def _warmed_up(self) -> None:
        self.begin_warm_up()
        await self.warm_up_over()
        if self.failure is not None:
            raise self.failure

    def _is_at_hand(self, asked: SpeechFields) -> bool:
        """Whether the voice is loaded."""
        name = self._voice_name(asked)
        return bool(asked.ref_audio) or (asked.voice_file is None and (name is None or self.voices.at_hand(name)))

    def _speak(
        self, text: str | None, asked: SpeechFields, reference: Voice | None, wanted: Mapping[str, Any]
    ) -> SpeechStream:
        options = self._options(asked, reference)
        return self.engine.speak_for(current_request().owner, text, options, **wanted)

    def _options(self, asked: SpeechFields, reference: Voice | None = None) -> SpeechOptions:
        sampling, seed = self._sampling(asked)
        return SpeechOptions(
            voice=self._voice(asked) if reference is None else reference,
            language=asked.language,
            instruct=asked.instruct,
            sampling=sampling,
            seed=seed,
            layout=asked.layout,
            max_frames=asked.max_frames,
            max_ahead_s=asked.max_ahead_s,
            clean_text=asked.clean_text,
            normalize=asked.normalize,
            lexicon=self._lexicon(asked),
            markup=asked.markup,
            cast=self._cast(asked),
        )

    def _lexicon(self, asked: SpeechFields) -> Lexicon | None:
        """The words of the request, and behind them those that go with its voice, unless its text stays as it is."""
        kept = self._lexicons.find(self._voice_name(asked)) if asked.clean_text else None
        return kept if asked.lexicon is None else Lexicon(asked.lexicon).over(kept)

    def _voice(self, asked: SpeechFields) -> str | Voice | None:
        if asked.voice_file is not None:
            if asked.voice is not None:
                raise InvalidRequestError("voice and voice_file both say who speaks; give one of them")
            return self._voice_in(asked.voice_file)
        return self._named(self._voice_name(asked))

    def _voice_in(self, file: str) -> Voice:
        return self._cache.get(blake2b(file.encode(), digest_size=16).digest(), lambda: decode_voice(file))

    def _cast(self, asked: SpeechFields) -> dict[str, str | Voice] | None:
        named = {name: self._named(voice) or voice for name, voice in (asked.cast or {}).items()}
        return named | {name: self._voice_in(file) for name, file in (asked.cast_files or {}).items()} or None

    def _named(self, name: str | None) -> str | Voice | None:
        voice = None if name is None else self.voices.get(name)
        if voice is None and self.engine.checkpoint.config.variant == "base":
            self._refuse_voice(name)
        return voice or name

    def _refuse_voice(self, name: str | None) -> NoReturn:
        """Say which voices a Base checkpoint can speak with here, and how it gets more."""
        kept = [known for known, _ in self.voices.items()]
        more = f" and {len(kept) - TOLD_VOICES} more" if len(kept) > TOLD_VOICES else ""
        voices = f"this server keeps {', '.join(kept[:TOLD_VOICES])}{more}" if kept else "this server keeps no voice"
        where = "" if self.voices.folder is not None else " (with the setting voices_dir)"
        how = f"{voices}; POST /v1/voices or `megatalker voices add` adds one{where}"
        if name is None:
            raise InvalidRequestError(f"a Base checkpoint has no voice of its own, and none is named; {how}")
        raise UnknownVoiceError(f"unknown voice {name!r:.80}; {how}")

    def _voice_name(self, asked: SpeechFields) -> str | None:
        return self.engine.settings.voice if asked.voice is None else asked.voice

    def _sampling(self, asked: SpeechFields) -> tuple[SamplingParams | None, int | None]:
        """The checkpoint's own parameters with those asked for on top, and the seed if one was asked for."""
        if asked.sampling is None:
            return None, asked.seed
        unknown = [name for name in asked.sampling if name not in _SAMPLING_FIELDS]
        if unknown:
            raise InvalidRequestError(
                f"sampling has no {', '.join(map(repr, unknown))}; expected some of {', '.join(_SAMPLING_FIELDS)}"
            )
        sampling = replace(self.engine.checkpoint.sampling, **asked.sampling)
        if asked.seed is not None:
            return sampling, asked.seed
        return sampling, sampling.seed if "seed" in asked.sampling else random_seed()

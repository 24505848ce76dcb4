"""From the options of a request to a stream of the one engine, and its end."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Literal

from megatalker.engine import Engine, SpeechStream
from megatalker.engine.options import SpeechOptions, random_seed
from megatalker.errors import InvalidRequestError, MegatalkerError, SettingsError
from megatalker.sampling import SamplingParams
from megatalker.serving.protocol.messages import InstructFate, SpeechFields
from megatalker.serving.protocol.voice_files import decode_voice
from megatalker.serving.server.meters import Meters, Route
from megatalker.serving.server.problems import DrainingError, NotReadyError
from megatalker.voices import Voice

logger = logging.getLogger(__name__)

_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))


class Speaker:
    """The engine as the routes see it: begins utterances when it is warm, keeps account of them until they end.

    Raises:
        SettingsError: a voice file is named like a speaker of the checkpoint.
    """

    def __init__(self, engine: Engine, voices: Mapping[str, Voice]) -> None:
        taken = [name for name in voices if name in engine.checkpoint.config.speakers]
        if taken:
            raise SettingsError(
                f"the voice files {', '.join(taken)} are named like speakers of the checkpoint; rename them"
            )
        self.engine, self.voices, self.meters = engine, voices, Meters(engine)
        self.running: dict[SpeechStream, bool] = {}
        """Begun and not ended; whether all text was there from the start."""
        self.draining = False
        """What runs is finished, nothing new is begun."""
        self._warm = False
        self._beginning = 0
        self._failure: MegatalkerError | None = None

    async def warm_up(self) -> None:
        """Warm the engine up; afterwards :attr:`ready` or :attr:`failure` says what came of it."""
        try:
            await asyncio.to_thread(self.engine.warmup)
        except MegatalkerError as error:
            self._failure = error
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
        """The engine is warm and serves."""
        return self.status == "ready"

    @property
    def busy(self) -> bool:
        """Utterances run, or are being begun."""
        return bool(self.running or self._beginning)

    async def begin(
        self, text: str | None, asked: SpeechFields, route: Route, *, return_codes: bool = False
    ) -> SpeechStream:
        """Begin an utterance; :meth:`end` must follow.

        Requests are checked in another thread, since long texts take their time.

        Raises:
            NotReadyError: during warm-up.
            DrainingError: the server is about to stop.
            MegatalkerError: as :meth:`megatalker.engine.Engine.speak`.
        """
        try:
            self._require_ready()
            self._beginning += 1
            try:
                stream = await asyncio.to_thread(self._speak, text, asked, return_codes)
            finally:
                self._beginning -= 1
        except Exception as error:
            self.meters.refused(error, route)
            raise
        self.running[stream] = text is not None
        return stream

    async def check(self, asked: SpeechFields) -> None:
        """Whether :meth:`begin` would take text with these options; nothing is spoken. Raises as it."""
        self._require_ready()
        await asyncio.to_thread(lambda: self.engine.check(self._options(asked)))

    def end(self, stream: SpeechStream, route: Route) -> None:
        """The utterance is over, or nobody listens any more."""
        stream.cancel()
        self.meters.ended(stream, route, whole_text=self.running.pop(stream))

    def instruct_fate(self, asked: SpeechFields) -> InstructFate | None:
        """What becomes of the instruction of a request; ``None`` where it has none."""
        if not (asked.instruct or "").strip():
            return None
        return "followed" if self.engine.checkpoint.config.takes_instruct else "ignored"

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, which takes its time for a long one."""
        return len(self.engine.checkpoint.tokenizer.encode(text).ids)

    def _require_ready(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._warm:
            raise NotReadyError("the server is still warming up; try again when GET /health answers 200")
        if self.draining:
            raise DrainingError("the server is about to stop and begins nothing new; ask another one, or later")

    def _speak(self, text: str | None, asked: SpeechFields, return_codes: bool) -> SpeechStream:
        return self.engine.speak(text, self._options(asked), return_codes=return_codes)

    def _options(self, asked: SpeechFields) -> SpeechOptions:
        sampling, seed = self._sampling(asked)
        return SpeechOptions(
            voice=self._voice(asked),
            language=asked.language,
            instruct=asked.instruct,
            sampling=sampling,
            seed=seed,
            layout=asked.layout,
            max_frames=asked.max_frames,
            max_ahead_s=asked.max_ahead_s,
        )

    def _voice(self, asked: SpeechFields) -> str | Voice | None:
        if asked.voice_file is not None:
            if asked.voice is not None:
                raise InvalidRequestError("voice and voice_file both say who speaks; give one of them")
            return decode_voice(asked.voice_file)
        name = self.engine.settings.voice if asked.voice is None else asked.voice
        return None if name is None else self.voices.get(name, name)

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

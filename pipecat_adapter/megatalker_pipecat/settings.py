"""Settings of the speech, which may change while the service speaks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Self

from pipecat.services.settings import ServiceSettings, TTSSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven, assert_given, is_given

import megatalker
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.sampling import SamplingParams
from megatalker.settings import LONGEST_S
from megatalker.voices import Voice, mix_voices
from megatalker.voices.mixing import mix_parts

ENGINE_FIELDS = frozenset({"model", "backend", "checkpoint"})
"""Fields that say which engine speaks; the others belong to each utterance."""


def _find_voice(name: str, voices: Mapping[str, Voice]) -> str | Voice:
    """The voice of this name, or the mix of several; the engine is given names that are none of ours."""
    if name in voices:
        return voices[name]
    parts = mix_parts(name) or ()
    if not any(part in voices for part, _ in parts):
        return name
    unknown = next((part for part, _ in parts if part not in voices), None)
    if unknown is not None:
        raise InvalidRequestError(
            f"unknown voice {unknown[:80]!r} in the mix {name[:80]!r}; known: {', '.join(voices)}"
        )
    return mix_voices([(voices[part], weight) for part, weight in parts])


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST_S


@dataclass
class MegatalkerTTSSettings(TTSSettings):
    """Settings of :class:`MegatalkerTTSService`. In a delta, fields left out stay as they are.

    In ``SENTENCE`` mode a change is heard from the next sentence on, in ``TOKEN`` mode from the next turn on.

    Parameters:
        voice: A speaker of the checkpoint, or a name from the service's ``voices``. ``None``: the engine's own.
        language: A ``Language``, or a name of the checkpoint such as ``german``; ``auto`` lets the model find it out.
        model: Pipecat's name for ``checkpoint``; give either one.
        instruct: How to speak, in words, where the checkpoint takes it.
        seed: The same seed gives the same speech for the same text; ``None``: another one for each utterance.
        sampling: How codes are chosen; ``None``: as the checkpoint says.
        max_ahead_s: Speech is made at most this many seconds ahead of playback. ``None``: as the engine is set.
        clean_text: ``False`` gives the model the text as it is, and refuses what cannot be spoken.
        normalize: ``on`` writes numbers, dates and the like out in words; ``None``: as the engine is set.
        lexicon: Respellings by word, and tables of them by language; a ``Lexicon``; or ``None``.
        markup: ``tags`` or ``ssml``: the text holds pauses, marks, voices and spoken forms; ``None``: as the engine is
            set.
        cast: Speakers or names from the service's ``voices``, by the names that a text in markup gives them.
        backend: Talker backend; changing it moves the session to another engine, see ``MegatalkerTTSService.preload``.
        checkpoint: As ``backend``.
    """

    instruct: str | NotGiven | None = NOT_GIVEN
    seed: int | NotGiven | None = NOT_GIVEN
    sampling: SamplingParams | NotGiven | None = NOT_GIVEN
    max_ahead_s: float | NotGiven | None = NOT_GIVEN
    clean_text: bool | NotGiven = NOT_GIVEN
    normalize: Literal["off", "on"] | NotGiven | None = NOT_GIVEN
    lexicon: Mapping[str, str | Mapping[str, str]] | Lexicon | NotGiven | None = NOT_GIVEN
    markup: Literal["none", "tags", "ssml"] | NotGiven | None = NOT_GIVEN
    cast: Mapping[str, str] | NotGiven | None = NOT_GIVEN
    backend: str | NotGiven | None = NOT_GIVEN
    checkpoint: str | NotGiven | None = NOT_GIVEN

    _aliases: ClassVar[dict[str, str]] = {"voice_id": "voice"}

    @classmethod
    def complete(cls, engine_settings: megatalker.Settings | None) -> Self:
        """All fields given, as the engine is set; without an engine of our own (a server) they are ``None``."""
        own = engine_settings
        return cls(
            model=own.checkpoint if own else None,
            voice=own.voice if own else None,
            language=own.language if own else None,
            instruct=None,
            seed=None,
            sampling=None,
            max_ahead_s=own.max_ahead_s if own else None,
            clean_text=True,
            normalize=None,
            lexicon=None,
            markup=None,
            cast=None,
            backend=own.backend if own else None,
            checkpoint=own.checkpoint if own else None,
        )

    @classmethod
    def own(cls, delta: ServiceSettings) -> Self:
        """A copy of a delta; Pipecat's own ``TTSSettings`` are taken, too."""
        names = {item.name for item in fields(cls)}
        given = {name: value for name, value in delta.given_fields().items() if name in names}
        return cls(**given, extra=dict(delta.extra))

    def options(self, voices: Mapping[str, Voice]) -> megatalker.SpeechOptions:
        """Return the engine's options for complete settings; ``voices`` by the names that ``voice`` may hold."""
        voice, cast = assert_given(self.voice), assert_given(self.cast)
        return megatalker.SpeechOptions(
            voice=None if voice is None else _find_voice(voice, voices),
            language=assert_given(self.language),
            instruct=assert_given(self.instruct),
            sampling=assert_given(self.sampling),
            seed=assert_given(self.seed),
            max_ahead_s=assert_given(self.max_ahead_s),
            clean_text=assert_given(self.clean_text),
            normalize=assert_given(self.normalize),
            lexicon=assert_given(self.lexicon),
            markup=assert_given(self.markup),
            cast=None if cast is None else {name: voices.get(one, one) for name, one in cast.items()},
        )

    def engine_choice(self) -> tuple[str | None, str | None]:
        """Backend and checkpoint, for complete settings; ``None``: as the engine to begin with is set."""
        return assert_given(self.backend), assert_given(self.checkpoint)

    def check(self) -> None:
        """Bring ``model`` and ``checkpoint`` together, and refuse values that no engine can take.

        Raises:
            SettingsError: ``model`` and ``checkpoint`` differ, or ``max_ahead_s``, ``clean_text``, ``normalize``,
                ``markup`` or ``sampling`` is impossible.
        """
        if is_given(self.model) and is_given(self.checkpoint) and self.model != self.checkpoint:
            raise SettingsError(
                f"model is {self.model!r} and checkpoint is {self.checkpoint!r}; they mean the same, give one of them"
            )
        if is_given(self.model):
            self.checkpoint = self.model
        elif is_given(self.checkpoint):
            self.model = self.checkpoint
        ahead = self.max_ahead_s
        if is_given(ahead) and ahead is not None and not _is_time(ahead):
            raise SettingsError(f"max_ahead_s is {ahead!r}, expected a number of seconds above 0, or None")
        if is_given(self.clean_text) and not isinstance(self.clean_text, bool):
            raise SettingsError(f"clean_text is {self.clean_text!r}, expected True or False")
        if is_given(self.normalize) and self.normalize not in ("off", "on", None):
            raise SettingsError(f"normalize is {self.normalize!r}, expected 'off', 'on' or None")
        if is_given(self.markup) and self.markup not in ("none", "tags", "ssml", None):
            raise SettingsError(f"markup is {self.markup!r}, expected 'none', 'tags', 'ssml' or None")
        if is_given(self.sampling) and not isinstance(self.sampling, SamplingParams | None):
            raise SettingsError(f"sampling is {self.sampling!r}, expected megatalker.SamplingParams or None")

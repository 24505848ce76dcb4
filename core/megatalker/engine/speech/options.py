"""How to speak: the options of one utterance, the same for an engine in this process and on a server."""

import difflib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from megatalker.errors import InvalidRequestError
from megatalker.prompt import Layout
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.sampling import SamplingParams
from megatalker.voices import Voice

_MASK = 2**64 - 1  # not tuned: a protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """Everything about an utterance besides its text. ``None`` leaves the choice to the engine's settings."""

    voice: str | Voice | None = None
    """A speaker's name, or a :class:`~megatalker.voices.Voice`; by default ``settings.voice``, else the checkpoint's
    own."""
    language: str | None = None
    """``auto``, or a language of the checkpoint by name or code (``en``, ``en-US``); by default
    ``settings.language``."""
    instruct: str | None = None
    """How to speak, or the voice described in words, where the checkpoint takes one."""
    sampling: SamplingParams | None = None
    """How codes are chosen; by default as the checkpoint says."""
    seed: int | None = None
    """By default the seed of ``sampling`` where that is given, else a random one, which ``stream.seed`` tells."""
    layout: Layout | Literal["auto"] = "auto"
    """``upfront`` gives the talker the whole text before speech, ``interleaved`` a piece with each frame. ``auto`` is
    the official choice for the checkpoint when the text is given at once (``interleaved`` for ``base``, ``upfront`` for
    the others), and ``interleaved`` while it is being written."""
    max_frames: int | None = None
    """Frames of the utterance, at most and by default ``settings.max_frames``."""
    max_ahead_s: float | None = None
    """Seconds of audio that may be made ahead of playback; by default ``settings.max_ahead_s``."""
    return_codes: bool = False
    """Chunks carry their codes."""
    clean_text: bool = True
    """Make the text fit to be spoken (:mod:`megatalker.prompt.cleaning`). ``False`` gives the model the text as it is,
    equal to the official prompt, and refuses text with characters that are none or with control tokens."""
    normalize: Literal["off", "on"] | None = None
    """``on`` writes numbers, dates, amounts, units, addresses and abbreviations out in words; by default
    ``settings.normalize``, unless ``clean_text`` is off (:mod:`megatalker.prompt.rewriting.normalisation`)."""
    lexicon: Mapping[str, str | Mapping[str, str]] | Lexicon | None = None
    """Respellings of words, and tables of them by language; they go before those of ``settings.lexicon``
    (:mod:`megatalker.prompt.rewriting.lexicon`)."""
    markup: Literal["none", "tags", "ssml"] | None = None
    """Pauses, marks, voices and spoken forms in the text, in SSML or in short tags (:mod:`megatalker.prompt.markup`);
    ``none`` speaks the text as it is. By default ``settings.markup``, unless ``clean_text`` is off."""
    cast: Mapping[str, str | Voice] | None = None
    """Voices by the names that a text in markup gives them, besides the checkpoint's speakers."""
    word_times: bool = False
    """``stream.take_words`` tells which words were spoken, and when (:mod:`megatalker.engine.speech.word_times`)."""

    @classmethod
    def of(cls, options: Self | None, changes: Mapping[str, Any]) -> Self:
        """``options`` with ``changes`` on top.

        Raises:
            InvalidRequestError: there is no option of such a name, or ``options`` is something else.
        """
        known = [field.name for field in fields(cls)] if changes else []
        for name in changes:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
                raise InvalidRequestError(f"there is no option {name!r} of speech; {hint}")
        if options is None:
            return cls(**changes)
        if not isinstance(options, cls):
            raise InvalidRequestError(f"options is {options!r}, expected SpeechOptions")
        return replace(options, **changes) if changes else options

    def chosen_seed(self) -> int:
        """The seed asked for, else that of the sampling parameters, else a random one.

        Raises:
            InvalidRequestError: ``sampling`` is something else than sampling parameters.
        """
        if self.sampling is not None and not isinstance(self.sampling, SamplingParams):
            raise InvalidRequestError(f"sampling is {self.sampling!r}, expected SamplingParams")
        if self.seed is not None:
            return self.seed
        return random_seed() if self.sampling is None else self.sampling.seed


def random_seed() -> int:
    """A seed nobody chose. Below 2**53, so that it survives JSON and spreadsheets."""
    return secrets.randbelow(2**53)


def stream_seed(seed: int, index: int) -> int:
    """The seed of one decoder stream of an utterance: the request's own for the first, well mixed (SplitMix64) for the
    others, which speak further segments or speak one once more.

    Args:
        seed: of the request.
        index: streams that the utterance had before.
    """
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)

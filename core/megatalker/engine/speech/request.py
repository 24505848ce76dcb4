"""Turns a caller's words into a checked utterance, in the caller's thread."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import Continuation
from megatalker.engine.speech.text_segmenter import TextSegmenter
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.prompt import Layout, PromptPlan, PromptPlanner
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.prompt.languages import resolve
from megatalker.prompt.markup import MarkedText
from megatalker.prompt.markup.parts import NAME, NAME_RULE, MarkupReader
from megatalker.prompt.markup.say_as import SayAs
from megatalker.prompt.markup.ssml import SsmlReader
from megatalker.prompt.markup.tags import TagReader
from megatalker.prompt.rewriting.factory import RewriterFactory
from megatalker.prompt.rewriting.rewriter import TextRewriter
from megatalker.prompt.text import TextChecker, check_text, prepare_text
from megatalker.sampling import SamplingParams
from megatalker.settings import LONGEST_S, Settings
from megatalker.voices import Voice, default_voice, list_languages, list_speakers
from megatalker.voices.mixing import find_mixed

MOST_CAST = 64  # not tuned: a bound of memory
"""Voices of the option ``cast``."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a caller, checked."""

    plan: PromptPlan
    sampling: SamplingParams
    """With the request's seed."""
    max_frames: int
    max_segment_frames: int
    max_ahead_s: float | None
    return_codes: bool
    cast: Mapping[str, PromptPlan] = field(default_factory=dict)
    """Plans of the other voices that the text may name."""

    def plan_of(self, voice: str) -> PromptPlan:
        """Return the plan for a voice that the text names; "" is the request's own."""
        return self.plan if not voice else self.cast[voice]

    def ids_needed(self) -> dict[str, int]:
        """Return :attr:`PromptPlan.ids_needed` of each voice by its name in the text."""
        return {"": self.plan.ids_needed, **{name: plan.ids_needed for name, plan in self.cast.items()}}


@dataclass(frozen=True, slots=True)
class TalkerLimits:
    """Limits that the talker backend in use sets to a request."""

    name: str
    seeded_sampling: bool
    max_positions: int


class RequestChecker:
    """Checks requests against settings, checkpoint and backend."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint) -> None:
        self._settings, self._checkpoint = settings, checkpoint
        self._planner = PromptPlanner(checkpoint)
        self._control_tokens = ControlTokens(control_tokens(checkpoint.tokenizer))
        self._rewriters = RewriterFactory(settings)

    def check(
        self, text: str | None, options: SpeechOptions, limits: TalkerLimits, after: Continuation | None = None
    ) -> tuple[Request, TextSegmenter]:
        """The request and its text, if that is whole. ``after``: what another engine is told to have said of it.

        Raises:
            InvalidRequestError: something about the request can never work; the message says what would.
            UnsupportedError: the backend is greedy only, and the request samples.
        """
        if not isinstance(options.clean_text, bool):
            raise InvalidRequestError(f"clean_text is {options.clean_text!r}, expected True or False")
        request = self._request(text, options)
        sampling = request.sampling
        if not limits.seeded_sampling and (sampling.do_sample or sampling.predictor_do_sample):
            raise UnsupportedError(
                f"backend {limits.name!r} is greedy only; ask for do_sample=False and predictor_do_sample=False, "
                "or choose another backend"
            )
        segmenter = self._segmenter(text, request, options)
        coming = [(request.plan_of(segment.voice), len(segment.ids)) for segment in segmenter.coming]
        longest = max((plan.prefill_rows(ids) for plan, ids in coming or [(request.plan, 1)]))
        frames_that_fit(longest, request.max_frames, limits.max_positions)
        if after is not None:
            self._check_continuation(after, request)
        return request, segmenter

    def text_checker(self, text: str | None, options: SpeechOptions) -> TextChecker | None:
        """Return what checks the pieces of a text that arrives bit by bit; ``None`` where ``text`` is all of it."""
        if text is not None:
            return None
        most, tokens = self._settings.max_text_chars, self._control_tokens
        rewriter, marked = self._reading(options)
        return TextChecker(tokens, most, cleaning=options.clean_text, rewriter=rewriter, marked=marked)

    def _reading(self, options: SpeechOptions) -> tuple[TextRewriter | None, MarkedText | None]:
        """Return what rewrites a text with these options, and what reads its markup, which rewrites, too."""
        language = self._settings.language if options.language is None else options.language
        name = resolve(language, list_languages(self._checkpoint))
        spoken = None if name == "auto" else name
        rewriter = self._rewriters.make(spoken, options.normalize, options.lexicon, cleaning=options.clean_text)
        match self._markup(options):
            case "none":
                return rewriter, None
            case "tags":
                reader: MarkupReader = TagReader(self._voice_names(options))
            case "ssml":
                reader = SsmlReader(self._voice_names(options), SayAs(spoken))
        return None, MarkedText(reader, self._control_tokens, rewriter)

    def takes_prosody(self, options: SpeechOptions) -> bool:
        """Whether a text with these options may ask for another rate or volume."""
        return self._markup(options) == "ssml"

    def _markup(self, options: SpeechOptions) -> Literal["none", "tags", "ssml"]:
        if options.markup not in (None, "none", "tags", "ssml"):
            raise InvalidRequestError(f"markup is {options.markup!r:.60}, expected 'none', 'tags' or 'ssml'")
        if not options.clean_text:
            if options.markup in (None, "none"):
                return "none"
            raise InvalidRequestError(
                "markup changes the text, and clean_text=False gives the model the text as it is; leave one of them out"
            )
        return self._settings.markup if options.markup is None else options.markup

    def _voice_names(self, options: SpeechOptions) -> list[str]:
        """Return the names that a text may give its voices: those of the cast, and the checkpoint's speakers."""
        cast = options.cast or {}
        if not isinstance(cast, Mapping) or len(cast) > MOST_CAST:
            found = f"{len(cast)} voices" if isinstance(cast, Mapping) else repr(cast)[:60]
            raise InvalidRequestError(
                f"cast is {found}, expected at most {MOST_CAST} voices by their names in the text"
            )
        folded = [name.casefold() for name in cast if isinstance(name, str)]
        for name in cast:
            if not isinstance(name, str) or NAME.fullmatch(name) is None or folded.count(name.casefold()) > 1:
                raise InvalidRequestError(
                    f"cast has a voice {name!r:.80}, expected names that differ by more than their case: {NAME_RULE}"
                )
        speakers = list_speakers(self._checkpoint)
        return [*cast, *(name for name in speakers if name.casefold() not in folded)]

    def _cast(self, options: SpeechOptions, plan: Callable[[Voice], PromptPlan]) -> dict[str, PromptPlan]:
        """Return the plans of the voices that the text may name."""
        if self._markup(options) == "none":
            if options.cast:
                raise InvalidRequestError(
                    "cast names the voices of a text in markup; ask for markup 'tags' or 'ssml', too"
                )
            return {}
        cast = options.cast or {}
        return {name: plan(self._voice(cast.get(name, name))) for name in self._voice_names(options)}

    def _check_continuation(self, said: Continuation, request: Request) -> None:
        codes, limits = said.codes, np.array(self._checkpoint.config.code_limits)
        if said.silence < 0 or said.marks < 0:
            raise InvalidRequestError(
                f"{said.silence} samples of silence and {said.marks} marks to go on after, expected 0 or more"
            )
        if not len(codes):  # a pause alone was said
            codes = np.empty((0, len(limits)), np.int64)
        if codes.ndim != 2 or codes.shape[1] != len(limits) or len(codes) > request.max_frames:
            expected = f"at most {request.max_frames} frames of {len(limits)}"
            raise InvalidRequestError(f"codes to go on after have the shape {list(codes.shape)}, expected {expected}")
        if ((codes < 0) | (codes >= limits)).any():
            raise InvalidRequestError(
                "codes to go on after are none of this checkpoint's; continue on the same checkpoint"
            )
        frames = [end.frame for end in said.ends]
        if frames != sorted(frames) or any(frame < 0 for frame in frames):
            raise InvalidRequestError(
                f"ends to go on after are at frames {frames[:8]}, expected rising numbers from 0 on"
            )
        if not 0 <= said.ahead_s < math.inf:
            raise InvalidRequestError(f"ahead_s is {said.ahead_s!r}, expected the seconds of audio in hand")

    def _request(self, text: str | None, options: SpeechOptions) -> Request:
        settings = self._settings
        sampling = self._checkpoint.sampling if options.sampling is None else options.sampling
        language = settings.language if options.language is None else options.language
        plan = partial(
            self._planner.plan,
            language=_string("language", language),
            instruct=self._description("instruct", options.instruct),
            layout=self._layout(text, options.layout),
        )
        return Request(
            plan=plan(voice=self._voice(options.voice)),
            cast=self._cast(options, lambda voice: plan(voice=voice)),
            sampling=replace(sampling, seed=options.chosen_seed()),
            max_frames=self._max_frames(options.max_frames),
            max_segment_frames=settings.max_segment_frames or self._checkpoint.max_new_tokens - 1,
            max_ahead_s=_max_ahead(settings.max_ahead_s if options.max_ahead_s is None else options.max_ahead_s),
            return_codes=options.return_codes,
        )

    def _voice(self, voice: str | Voice | None) -> Voice:
        if voice is None:
            voice = self._settings.voice
        if voice is None:
            return default_voice(self._checkpoint)
        if isinstance(voice, str):
            return find_mixed(voice, self._checkpoint) or Voice.named(voice)
        if not isinstance(voice, Voice):
            raise InvalidRequestError(f"voice is {voice!r}, expected a speaker's name or a Voice")
        self._description("the voice's description", voice.description)
        self._check_reference(voice)
        return voice

    def _check_reference(self, voice: Voice) -> None:
        settings, codes, ids = self._settings, voice.reference_codes, voice.reference_text_ids
        if codes is not None and len(codes) * FRAME_SECONDS > settings.max_reference_s:
            raise InvalidRequestError(
                f"the voice's reference lasts {len(codes) * FRAME_SECONDS:.1f} s, "
                f"expected at most {settings.max_reference_s:g} s; clone it from a shorter recording, "
                "or raise the setting max_reference_s"
            )
        if ids is not None and len(ids) > settings.max_text_chars:
            raise InvalidRequestError(
                f"the text of the voice's reference has {len(ids)} ids, expected at most {settings.max_text_chars} "
                "(setting max_text_chars); clone it with what the recording says"
            )

    def _description(self, what: str, text: str | None) -> str | None:
        """Text that is read but not spoken, checked like the text; ``None`` when there is none."""
        if text is None or not _string(what, text).strip():
            return None
        try:
            check_text(text, self._settings.max_text_chars, self._control_tokens)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{what}: {error}") from error
        return text  # as it came: the official package does not strip it either

    def _layout(self, text: str | None, layout: Layout | Literal["auto"]) -> Layout:
        if layout == "auto":
            at_once = text is not None and self._checkpoint.config.variant != "base"
            return "upfront" if at_once else "interleaved"
        if layout == "upfront" and text is None:
            raise InvalidRequestError(
                "layout 'upfront' needs the whole text before speech begins; leave the layout out, "
                "or give the text at once"
            )
        return layout

    def _max_frames(self, asked: int | None) -> int:
        limit = self._settings.max_frames
        if asked is None:
            return limit
        if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= limit:
            raise InvalidRequestError(
                f"max_frames is {asked!r}, expected an integer from 1 to {limit}; "
                "the setting max_frames raises the limit"
            )
        return asked

    def _segmenter(self, text: str | None, request: Request, options: SpeechOptions) -> TextSegmenter:
        settings, cleaning = self._settings, options.clean_text
        rewriter, marked = self._reading(options)
        tokenizer, most_chars = self._checkpoint.tokenizer, settings.max_segment_chars
        segmenter = TextSegmenter(tokenizer, most_chars, request.ids_needed(), clean=cleaning)
        if text is not None:
            most, tokens = settings.max_text_chars, self._control_tokens
            whole = prepare_text(text, most, tokens, cleaning=cleaning, rewriter=rewriter, marked=marked)
            segmenter.add_whole(whole)
        return segmenter


def frames_that_fit(prompt_rows: int, max_frames: int, max_positions: int) -> int:
    """Frames that a segment may have: those asked for, or as many as the backend has positions after the prompt.

    Raises:
        InvalidRequestError: the prompt alone fills the positions.
    """
    fit = max_positions - prompt_rows
    if fit < 1:
        raise InvalidRequestError(
            f"the prompt takes {prompt_rows} rows, this backend holds {max_positions} positions per stream and needs "
            "at least one for speech; shorten the text, instruction or reference audio, "
            "or raise the backend's max_positions"
        )
    return min(max_frames, fit)


def _string(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} is {value!r}, expected text")
    return value


def _max_ahead(seconds: float | None) -> float | None:
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds <= LONGEST_S):
        raise InvalidRequestError(
            f"max_ahead_s is {seconds!r}, expected a number of seconds above 0, at most {LONGEST_S}"
        )
    return seconds

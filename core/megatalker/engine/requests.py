"""Turns a caller's words into a checked session, in the caller's thread."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from megatalker.checkpoint import Checkpoint
from megatalker.engine.chunking import ChunkPolicy
from megatalker.engine.guard import RunawayGuard
from megatalker.engine.mailbox import Mailbox
from megatalker.engine.scheduler import chunk_limit
from megatalker.engine.script import Script
from megatalker.engine.seeds import request_seed
from megatalker.engine.session import Record, Request, Session
from megatalker.engine.talking import frames_that_fit
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.interfaces import TalkerCapabilities
from megatalker.prompt import Layout, PromptBuilder
from megatalker.prompt.sentences import split_sentences
from megatalker.prompt.text import IncrementalTokenizer, clean_text, control_tokens
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker.voices import Voice, default_voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The arguments of :meth:`megatalker.engine.Engine.speak` besides the text."""

    voice: str | Voice | None
    language: str | None
    instruct: str | None
    sampling: SamplingParams | None
    seed: int | None
    layout: Layout | Literal["auto"]
    max_frames: int | None
    max_ahead_s: float | None
    return_codes: bool


class TextIntake:
    """Checks the pieces of a text that arrives bit by bit, in the caller's thread."""

    def __init__(self, tokenizer: Any, max_chars: int) -> None:
        self._trial = IncrementalTokenizer(tokenizer)
        self._max_chars, self._seen = max_chars, 0

    def check(self, text: str) -> None:
        """Accept one more piece.

        Raises:
            InvalidRequestError: it cannot be spoken (:meth:`megatalker.prompt.text.IncrementalTokenizer.feed`), or all
                pieces together are too long.
        """
        self._trial.feed(text)
        if self._seen + len(text) > self._max_chars:
            raise InvalidRequestError(
                f"the text has {self._seen + len(text)} characters so far, expected at most {self._max_chars} in one "
                "stream; open another one, or raise the setting max_text_chars"
            )
        self._seen += len(text)


class RequestDesk:
    """Checks requests against settings, checkpoint and backend.

    Args:
        settings: the engine's.
        checkpoint: the engine's.
        checker: builds trial prompts.
        on_room: called when a consumer has taken what its stream was waiting for it to take.
    """

    def __init__(
        self, settings: Settings, checkpoint: Checkpoint, checker: PromptBuilder, on_room: Callable[[], None]
    ) -> None:
        self._settings, self._checkpoint, self._checker, self._on_room = settings, checkpoint, checker, on_room

    def accept(self, text: str | None, wishes: Wishes, limits: TalkerCapabilities, backend: str, codec: str) -> Session:
        """A session for this request, with its text if that is whole; raises as ``Engine.speak``."""
        settings, voice = self._settings, self._voice(wishes.voice)
        seed, sampling = _seeded(wishes, self._checkpoint.sampling)
        if not limits.seeded_sampling and (sampling.do_sample or sampling.predictor_do_sample):
            raise UnsupportedError(
                f"backend {backend!r} is greedy only; ask for do_sample=False and predictor_do_sample=False, "
                "or choose another backend"
            )
        request = Request(
            voice=voice,
            language=_string("language", settings.language if wishes.language is None else wishes.language),
            instruct=self._aside("instruct", wishes.instruct),
            layout=self._layout(text, wishes.layout),
            sampling=sampling,
            max_frames=self._max_frames(wishes.max_frames),
            max_ahead_s=_max_ahead(settings.max_ahead_s if wishes.max_ahead_s is None else wishes.max_ahead_s),
            return_codes=wishes.return_codes,
        )
        script = self._script(text, voice)
        self._check_prompts(request, script, limits)
        session = Session(
            request=request,
            script=script,
            record=Record(seed, time.monotonic(), backend, codec),
            mailbox=Mailbox(settings.max_untaken_s, self._on_room),
            chunking=ChunkPolicy(chunk_limit(settings.max_chunk_frames, request.max_ahead_s)),
            guard=RunawayGuard() if settings.runaway_guard else None,
        )
        if voice.reference_codes is not None:
            session.heard = [tuple(frame) for frame in voice.reference_codes.tolist()]
        return session

    def _voice(self, wish: str | Voice | None) -> Voice:
        if wish is None:
            wish = self._settings.voice
        if wish is None:
            return default_voice(self._checkpoint)
        if isinstance(wish, str):
            return Voice.named(wish)
        if not isinstance(wish, Voice):
            raise InvalidRequestError(f"voice is {wish!r}, expected a speaker's name or a Voice")
        self._aside("the voice's description", wish.description)
        return wish

    def _aside(self, what: str, text: str | None) -> str | None:
        """Text that is read but not spoken, checked like the text; ``None`` when there is none."""
        if text is None or not _string(what, text).strip():
            return None
        try:
            clean_text(text, self._settings.max_text_chars, control_tokens(self._checkpoint.tokenizer))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{what}: {error}") from error
        return text  # as it came: the official package does not strip it either

    def _layout(self, text: str | None, wish: Layout | Literal["auto"]) -> Layout:
        if wish == "auto":
            at_once = text is not None and self._checkpoint.config.variant != "base"
            return "upfront" if at_once else "interleaved"
        if wish == "upfront" and text is None:
            raise InvalidRequestError(
                "layout 'upfront' needs the whole text before speech begins; leave the layout out, "
                "or give the text at once"
            )
        return wish

    def _max_frames(self, wish: int | None) -> int:
        limit = self._settings.max_frames
        if wish is None:
            return limit
        if isinstance(wish, bool) or not isinstance(wish, int) or not 1 <= wish <= limit:
            raise InvalidRequestError(
                f"max_frames is {wish!r}, expected an integer from 1 to {limit}; "
                "the setting max_frames raises the limit"
            )
        return wish

    def _script(self, text: str | None, voice: Voice) -> Script:
        tokenizer, settings = self._checkpoint.tokenizer, self._settings
        script = Script(tokenizer, settings.max_segment_chars, self._checker.rows_needed(voice))
        if text is not None:
            cleaned = clean_text(text, settings.max_text_chars, control_tokens(tokenizer))
            for passage in split_sentences(cleaned, settings.max_segment_chars):
                script.add(passage)
            script.finish()
            if script.exhausted:
                raise InvalidRequestError(
                    f"there is nothing to say in {text[:40]!r}; expected at least one letter or digit"
                )
        return script

    def _check_prompts(self, request: Request, script: Script, limits: TalkerCapabilities) -> None:
        """Voice, language and instruction must be possible, and every prompt must leave room for speech."""
        config = self._checkpoint.config
        trial = self._checker.build(
            [config.tts_pad_id],
            voice=request.voice,
            language=request.language,
            instruct=request.instruct,
            layout=request.layout,
        )
        longest = max((len(passage.ids) for passage in script.coming), default=1)
        rows = len(trial.embeds) + (longest - 1 if request.layout == "upfront" else 0)
        limit = limits.max_positions
        positions = limit if isinstance(limit, int) else config.talker.max_positions
        frames_that_fit(rows, request.max_frames, positions)


def _string(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} is {value!r}, expected text")
    return value


def _seeded(wishes: Wishes, default: SamplingParams) -> tuple[int, SamplingParams]:
    seed = request_seed(wishes.seed, wishes.sampling)
    return seed, replace(default if wishes.sampling is None else wishes.sampling, seed=seed)


def _max_ahead(seconds: float | None) -> float | None:
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequestError(f"max_ahead_s is {seconds!r}, expected a number of seconds above 0")
    return seconds

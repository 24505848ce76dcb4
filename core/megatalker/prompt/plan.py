"""The content of a prompt, decided and checked before any row is computed: voice, language, instruction, layout.

A plan needs no device: a request is checked in its caller's thread, and its rows are computed once, by the worker.
"""

import logging
from dataclasses import dataclass
from typing import Literal

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import instruct_ids, role_ids
from megatalker.errors import InvalidRequestError
from megatalker.prompt.languages import resolve
from megatalker.voices import Voice, VoiceKind, list_languages, list_speakers
from megatalker.voices.voice import is_voice_path

logger = logging.getLogger(__name__)

Layout = Literal["interleaved", "upfront"]

_KINDS: dict[str, tuple[VoiceKind, ...]] = {
    "custom_voice": ("speaker", "mix"),
    "voice_design": ("design",),
    "base": ("clone", "mix"),
}
_HOW = {
    "custom_voice": "name one of its speakers",
    "voice_design": "describe a voice with Voice.designed",
    "base": "clone a voice from reference audio",
}


@dataclass(frozen=True, slots=True, eq=False)
class PromptPlan:
    """The decided parts of one request's prompts. Made by :meth:`PromptPlanner.plan`."""

    voice: Voice
    layout: Layout
    tags: tuple[int, ...]
    """Codec ids that say whether and in which language to speak."""
    speaker_id: int | None
    instruct_ids: tuple[int, ...]
    head_rows: int
    """Prefill rows before the row that begins speech."""

    @property
    def ids_needed(self) -> int:
        """Number of text ids that must be known before an interleaved prompt can be built while text still arrives.

        One, except for in-context voices, whose reference frames each take a text row.
        """
        codes, text = self.voice.reference_codes, self.voice.reference_text_ids
        if codes is None or text is None:
            return 1
        return max(1, len(codes) + 1 - len(text))

    def prefill_rows(self, text_ids: int) -> int:
        """Return the number of prefill rows for a complete text of ``text_ids`` ids."""
        codes, reference = self.voice.reference_codes, self.voice.reference_text_ids
        heard, read = (0, 0) if codes is None or reference is None else (len(codes), len(reference))
        text_and_end = read + text_ids + 1 if self.layout == "upfront" else 0
        return self.head_rows + text_and_end + 1 + heard


class PromptPlanner:
    """Checks and plans the prompts of one checkpoint. Holds no tensors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._config = checkpoint, checkpoint.config
        self._role_rows = len(role_ids(checkpoint.tokenizer))
        self._told_about_instruct = False

    def plan(
        self,
        *,
        voice: Voice,
        language: str = "auto",
        instruct: str | None = None,
        layout: Layout = "interleaved",
    ) -> PromptPlan:
        """Decide what the prompts of a request hold.

        Args:
            voice: of the kind that the checkpoint's variant speaks with.
            language: ``auto``, or a language of the checkpoint by its name or code (``en``, ``en-US``), in any case.
            instruct: how to speak. Checkpoints that ignore it officially (0.6B, and ``base``) say so once in the log.
            layout: see :mod:`megatalker.prompt.builder`.

        Raises:
            InvalidRequestError: an unknown language, speaker or layout (the message names the known ones), or a voice
                of another kind or checkpoint.
        """
        if layout not in ("interleaved", "upfront"):
            raise InvalidRequestError(f"layout is {layout!r}, expected 'interleaved' or 'upfront'")
        self._check_voice(voice)
        tags = self._tags(self._language_id(language, voice))
        instruct = self._effective_instruct(voice, instruct)
        ids = tuple(instruct_ids(self._checkpoint.tokenizer, instruct)) if instruct else ()
        speaker_id = None if voice.speaker is None else self._config.speakers[voice.speaker.lower()]
        spoken_by = speaker_id is not None or voice.x_vector is not None
        head_rows = len(ids) + self._role_rows + len(tags) + spoken_by + 1
        return PromptPlan(voice, layout, tuple(tags), speaker_id, ids, head_rows)

    def _tags(self, language_id: int | None) -> list[int]:
        config = self._config
        if language_id is None:
            return [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        return [config.codec_think_id, config.codec_think_bos_id, language_id, config.codec_think_eos_id]

    def _language_id(self, language: str, voice: Voice) -> int | None:
        known = list_languages(self._checkpoint)
        name = resolve(language, known)
        if name is None:
            raise InvalidRequestError(
                f"unknown language {language!r}; this checkpoint knows {', '.join(known)}, also by codes such as en-US"
            )
        dialect = self._config.dialects.get(voice.speaker.lower()) if voice.speaker is not None else None
        if dialect is not None and name in ("auto", "chinese"):
            name = dialect
        return None if name == "auto" else self._config.languages[name]

    def _effective_instruct(self, voice: Voice, instruct: str | None) -> str | None:
        config = self._config
        if config.variant == "voice_design":
            if voice.description and instruct:
                raise InvalidRequestError(
                    "a designed voice already carries its description; leave instruct out, or put it there"
                )
            return voice.description or instruct
        if instruct and not config.takes_instruct:
            if not self._told_about_instruct:
                logger.warning(
                    "checkpoint %r (%s, %s) ignores instruct", self._checkpoint.name, config.size, config.variant
                )
                self._told_about_instruct = True
            return None
        return instruct

    def _check_voice(self, voice: Voice) -> None:
        config, name = self._config, self._checkpoint.name
        if voice.kind not in _KINDS[config.variant]:
            raise InvalidRequestError(
                f"checkpoint {name!r} is a {config.variant} model and cannot speak with a {voice.kind} voice; "
                f"{_HOW[config.variant]}"
            )
        if voice.speaker is not None and voice.speaker.lower() not in config.speakers:
            known = ", ".join(list_speakers(self._checkpoint))
            hint = "; a voice file is read by Voice.load" if is_voice_path(voice.speaker) else ""
            raise InvalidRequestError(f"unknown speaker {voice.speaker!r}; this checkpoint knows {known}{hint}")
        if voice.checkpoint_fingerprint not in (None, self._checkpoint.fingerprint):
            raise InvalidRequestError(
                f"the voice was {'mixed' if voice.kind == 'mix' else 'cloned'} with another checkpoint than {name!r}; "
                f"{'mix' if voice.kind == 'mix' else 'clone'} it again with this one"
            )
        if voice.x_vector is not None and len(voice.x_vector) != config.talker.hidden_size:
            raise InvalidRequestError(
                f"the voice's x_vector has {len(voice.x_vector)} values, expected {config.talker.hidden_size}; "
                "clone it again with this checkpoint"
            )
        self._check_reference(voice)

    def _check_reference(self, voice: Voice) -> None:
        """A voice file may hold any numbers; those without a row in a table would fail on the device."""
        config, codes, ids = self._config, voice.reference_codes, voice.reference_text_ids
        if codes is not None:
            first, others = config.first_suppressed_id, config.predictor.vocab_size
            fits = codes.shape[1] == config.num_code_groups
            if not fits or int(codes[:, 0].max()) >= first or int(codes[:, 1:].max()) >= others:
                raise InvalidRequestError(
                    f"the voice's reference_codes have shape {list(codes.shape)} and reach {int(codes.max())}, "
                    f"expected {config.num_code_groups} groups, below {first} in the first and {others} in the others; "
                    "clone it again with this checkpoint"
                )
        if ids is not None and max(ids) >= config.text_vocab_size:
            raise InvalidRequestError(
                f"the voice's reference_text_ids reach {max(ids)}, expected ids below {config.text_vocab_size}; "
                "clone it again with this checkpoint"
            )

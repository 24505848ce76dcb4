"""Builds what the talker reads: equal, bit for bit in float32, to what the official ``generate()`` hands its talker.

A prompt is rows of the talker's width::

    [instruct turn]  role (3)  tags and speaker  |  text and codec rows, by layout

*upfront* (officially ``non_streaming_mode=True``) puts the whole text into the prefill. *interleaved* (``False``) puts
its first row there and adds one more to each frame, so that text may still arrive while speech has begun.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import instruct_ids, role_ids
from megatalker.errors import InvalidRequestError
from megatalker.prompt.rows import PromptRows
from megatalker.voices import Voice, VoiceKind, list_languages, list_speakers

logger = logging.getLogger(__name__)

Layout = Literal["interleaved", "upfront"]

_KIND: dict[str, VoiceKind] = {"custom_voice": "speaker", "voice_design": "design", "base": "clone"}
_HOW = {
    "custom_voice": "name one of its speakers",
    "voice_design": "describe a voice with Voice.designed",
    "base": "clone a voice from reference audio",
}


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The rows of one request, on the builder's device and in its dtype."""

    embeds: Tensor
    """``[T, H]``: prefill rows."""
    trailing: Tensor
    """``[N, H]``: text rows known now, added one to each frame from the first one on. N may be 0 while text arrives."""
    pad: Tensor
    """``[H]``: added to each frame after the last text row."""
    complete: bool
    """``False`` while text may still arrive: the caller then appends :meth:`PromptBuilder.text_rows` and, after the
    last word, :attr:`PromptBuilder.end_row` to ``trailing``."""
    reference_codes: Tensor | None
    """``[R, code groups]`` int64: the frames that precede the speech of an in-context voice, to warm the codec with."""
    prefix_length: int
    """This many leading rows are the same, to the bit, for every text with this voice, language and instruction."""


class PromptBuilder:
    """Builds the prompts of one checkpoint. Holds the text projection and a few rows; requests leave no trace."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint, self._config = checkpoint, checkpoint.config
        self._rows = PromptRows(checkpoint, device, dtype)
        config = self._config
        # one projection for the three, as officially: their last bits depend on it
        self._begin, end, pad = self._rows.text([config.tts_bos_id, config.tts_eos_id, config.tts_pad_id])
        self.end_row: Tensor = end
        """``[H]``: closes the text."""
        self.pad_row: Tensor = pad
        """``[H]``: stands where there is no text."""
        self._role = self._rows.text(role_ids(checkpoint.tokenizer))
        self._codec_pad, self._codec_begin = self._rows.codec([config.codec_pad_id, config.codec_bos_id])
        self._told_about_instruct = False

    def build(
        self,
        text_ids: Sequence[int],
        *,
        voice: Voice,
        language: str = "auto",
        instruct: str | None = None,
        layout: Layout = "interleaved",
        complete: bool = True,
    ) -> Prompt:
        """Build the prompt of one request.

        Args:
            text_ids: ids of the text alone (:func:`megatalker.checkpoint.template.text_ids`), or of its beginning.
            voice: of the kind that the checkpoint's variant speaks with.
            language: ``auto`` or a language of the checkpoint, in any case.
            instruct: how to speak. Checkpoints that ignore it officially (0.6B, and ``base``) say so once in the log.
            layout: see the module.
            complete: no text will follow. With ``False``, at least :meth:`rows_needed` ids must be given, and rows do
                not depend on how the text is split; their last bits may then differ from the official prompt's.

        Raises:
            InvalidRequestError: no text, an unknown language or speaker (the message names the known ones), a voice of
                another kind or checkpoint, an id outside the vocabulary, or text that may follow an ``upfront`` prompt.
        """
        self._check(text_ids, voice, layout, complete)
        head = self._head(voice, language, self._effective_instruct(voice, instruct))
        if voice.reference_codes is not None and voice.reference_text_ids is not None:
            ids = [*voice.reference_text_ids, *text_ids]
            body, trailing = self._in_context(ids, self._rows.frames(voice.reference_codes), layout, complete)
        elif layout == "upfront":
            body, trailing = self._upfront(text_ids)
        else:
            body, trailing = self._interleaved(text_ids, complete)
        return Prompt(
            embeds=torch.cat([head, body]),
            trailing=trailing,
            pad=self.pad_row,
            complete=complete,
            reference_codes=voice.reference_codes,
            prefix_length=len(head),
        )

    def rows_needed(self, voice: Voice) -> int:
        """How many text ids must be known before an interleaved prompt can be built while text still arrives.

        One, except for in-context voices, whose reference frames each take a text row.
        """
        if voice.reference_codes is None or voice.reference_text_ids is None:
            return 1
        return max(1, len(voice.reference_codes) + 1 - len(voice.reference_text_ids))

    def text_rows(self, ids: Sequence[int]) -> Tensor:
        """``[n, H]``: rows of text that arrived after the prompt was built, whatever the split.

        Raises:
            InvalidRequestError: an id outside the text vocabulary.
        """
        return self._rows.text_split(ids)

    def frame_rows(self, codes: Tensor) -> Tensor:
        """``[N, code groups]`` integer -> ``[N, H]``: the sum of each frame's code embeddings, in the official order.

        Raises:
            InvalidRequestError: another shape or type, or a code outside the codebook.
        """
        return self._rows.frames(codes)

    # --------------------------------------------------------------------------------------------------------- layouts

    def _interleaved(self, ids: Sequence[int], complete: bool) -> tuple[Tensor, Tensor]:
        body = self._rows.text(ids[:1]) + self._codec_begin
        return body, self._rows_of(ids[1:], complete)

    def _upfront(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        text = self._rows_of(ids, complete=True) + self._codec_pad
        begin = self.pad_row + self._codec_begin
        return torch.cat([text, begin.unsqueeze(0)]), self.pad_row.unsqueeze(0)

    def _in_context(self, ids: Sequence[int], frames: Tensor, layout: Layout, complete: bool) -> tuple[Tensor, Tensor]:
        text = self._rows_of(ids, complete)
        codec = torch.cat([self._codec_begin.unsqueeze(0), frames])
        pad = self.pad_row.unsqueeze(0)
        if layout == "upfront":
            return torch.cat([text + self._codec_pad, codec + self.pad_row]), pad
        missing = len(codec) - len(text)
        if missing > 0:
            text = torch.cat([text, pad.expand(missing, -1)])
        rest = text[len(codec) :]
        return text[: len(codec)] + codec, rest if len(rest) or not complete else pad

    def _rows_of(self, ids: Sequence[int], complete: bool) -> Tensor:
        if not complete:
            return self._rows.text_split(ids)
        return torch.cat([self._rows.text(ids), self.end_row.unsqueeze(0)])

    # ------------------------------------------------------------------------------------------------------------ head

    def _head(self, voice: Voice, language: str, instruct: str | None) -> Tensor:
        """Instruct turn, role, tags and speaker: everything before the row that begins speech."""
        codec = self._rows.codec(self._tags(self._language_id(language, voice)))
        if voice.speaker is not None:
            codec = torch.cat([codec, self._rows.codec([self._config.speakers[voice.speaker.lower()]])])
        elif voice.x_vector is not None:
            codec = torch.cat([codec, voice.x_vector.to(codec).unsqueeze(0)])
        text = torch.cat([self.pad_row.expand(len(codec), -1), self._begin.unsqueeze(0)])
        parts = [self._role, text + torch.cat([codec, self._codec_pad.unsqueeze(0)])]
        if instruct:
            parts.insert(0, self._rows.text(instruct_ids(self._checkpoint.tokenizer, instruct)))
        return torch.cat(parts)

    def _tags(self, language_id: int | None) -> list[int]:
        config = self._config
        if language_id is None:
            return [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        return [config.codec_think_id, config.codec_think_bos_id, language_id, config.codec_think_eos_id]

    def _language_id(self, language: str, voice: Voice) -> int | None:
        known, name = list_languages(self._checkpoint), language.lower()
        if name not in known:
            raise InvalidRequestError(f"unknown language {language!r}; this checkpoint knows {', '.join(known)}")
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
        if instruct and (config.variant == "base" or config.size == "0b6"):
            if not self._told_about_instruct:
                logger.warning(
                    "checkpoint %r (%s, %s) ignores instruct", self._checkpoint.name, config.size, config.variant
                )
                self._told_about_instruct = True
            return None
        return instruct

    # ---------------------------------------------------------------------------------------------------------- checks

    def _check(self, text_ids: Sequence[int], voice: Voice, layout: Layout, complete: bool) -> None:
        if not text_ids:
            raise InvalidRequestError("the text is empty; expected at least one token")
        if layout not in ("interleaved", "upfront"):
            raise InvalidRequestError(f"layout is {layout!r}, expected 'interleaved' or 'upfront'")
        self._check_voice(voice)
        if complete:
            return
        if layout == "upfront":
            raise InvalidRequestError(
                "layout 'upfront' needs the whole text first; use 'interleaved' while text still arrives"
            )
        needed = self.rows_needed(voice)
        if len(text_ids) < needed:
            raise InvalidRequestError(
                f"this in-context voice needs {needed} text ids, or the end of the text, before speech can begin; "
                f"got {len(text_ids)}"
            )

    def _check_voice(self, voice: Voice) -> None:
        config, name = self._config, self._checkpoint.name
        if voice.kind != _KIND[config.variant]:
            raise InvalidRequestError(
                f"checkpoint {name!r} is a {config.variant} model and cannot speak with a {voice.kind} voice; "
                f"{_HOW[config.variant]}"
            )
        if voice.speaker is not None and voice.speaker.lower() not in config.speakers:
            known = ", ".join(list_speakers(self._checkpoint))
            raise InvalidRequestError(f"unknown speaker {voice.speaker!r}; this checkpoint knows {known}")
        if voice.checkpoint_fingerprint not in (None, self._checkpoint.fingerprint):
            raise InvalidRequestError(
                f"the voice was cloned with another checkpoint than {name!r}; clone it again with this one"
            )
        if voice.x_vector is not None and len(voice.x_vector) != config.talker.hidden_size:
            raise InvalidRequestError(
                f"the voice's x_vector has {len(voice.x_vector)} values, expected {config.talker.hidden_size}; "
                "clone it again with this checkpoint"
            )

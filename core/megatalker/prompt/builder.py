"""Builds what the talker reads: equal, bit for bit in float32, to what the official ``generate()`` hands its talker.

A prompt is rows of the talker's width::

    [instruct turn]  role (3)  tags and speaker  |  text and codec rows, by layout

*upfront* (officially ``non_streaming_mode=True``) puts the whole text into the prefill. *interleaved* (``False``) puts
its first row there and adds one more to each frame, so that text may still arrive while speech has begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import role_ids
from megatalker.errors import InvalidRequestError
from megatalker.prompt.plan import Layout, PromptPlan, PromptPlanner
from megatalker.prompt.rows import PromptRows
from megatalker.voices import Voice


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
        self._planner = PromptPlanner(checkpoint)

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
        """Plan the prompt of one request (:meth:`PromptPlanner.plan`) and build it (:meth:`build_planned`)."""
        plan = self._planner.plan(voice=voice, language=language, instruct=instruct, layout=layout)
        return self.build_planned(text_ids, plan, complete=complete)

    def build_planned(self, text_ids: Sequence[int], plan: PromptPlan, *, complete: bool = True) -> Prompt:
        """Compute the rows of one prompt.

        Args:
            text_ids: ids of the text alone (:func:`megatalker.checkpoint.template.text_ids`), or of its beginning.
            plan: from :meth:`PromptPlanner.plan`.
            complete: no text will follow. With ``False``, at least :attr:`PromptPlan.ids_needed` ids must be given, and
                rows do not depend on how the text is split; their last bits may then differ from the official prompt's.

        Raises:
            InvalidRequestError: no text, an id outside the vocabulary, or text that may follow an ``upfront`` prompt.
        """
        _check_text(text_ids, plan, complete)
        voice, head = plan.voice, self._head(plan)
        if voice.reference_codes is not None and voice.reference_text_ids is not None:
            ids = [*voice.reference_text_ids, *text_ids]
            body, trailing = self._in_context(ids, self._rows.frames(voice.reference_codes), plan.layout, complete)
        elif plan.layout == "upfront":
            body, trailing = self._upfront(text_ids)
        else:
            body, trailing = self._interleaved(text_ids, complete)
        return Prompt(
            embeds=torch.cat([head, body]),
            trailing=trailing,
            pad=self.pad_row,
            complete=complete,
            prefix_length=len(head),
        )

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

    def _head(self, plan: PromptPlan) -> Tensor:
        """Instruct turn, role, tags and speaker: everything before the row that begins speech."""
        codec = self._rows.codec(plan.tags)
        if plan.speaker_id is not None:
            codec = torch.cat([codec, self._rows.codec([plan.speaker_id])])
        elif plan.voice.x_vector is not None:
            codec = torch.cat([codec, plan.voice.x_vector.to(codec).unsqueeze(0)])
        text = torch.cat([self.pad_row.expand(len(codec), -1), self._begin.unsqueeze(0)])
        parts = [self._role, text + torch.cat([codec, self._codec_pad.unsqueeze(0)])]
        if plan.instruct_ids:
            parts.insert(0, self._rows.text(plan.instruct_ids))
        return torch.cat(parts)


def _check_text(text_ids: Sequence[int], plan: PromptPlan, complete: bool) -> None:
    if not text_ids:
        raise InvalidRequestError("the text is empty; expected at least one token")
    if complete:
        return
    if plan.layout == "upfront":
        raise InvalidRequestError(
            "layout 'upfront' needs the whole text first; use 'interleaved' while text still arrives"
        )
    if len(text_ids) < plan.ids_needed:
        raise InvalidRequestError(
            f"this in-context voice needs {plan.ids_needed} text ids, or the end of the text, before speech can begin; "
            f"got {len(text_ids)}"
        )

"""Builds what the talker reads: equal, bit for bit in float32, to what the official ``generate()`` hands its talker.

A prompt is rows of the talker's width::

    [instruct turn]  role (3)  tags and speaker  |  text and codec rows, by layout

*upfront* (officially ``non_streaming_mode=True``) puts the whole text into the prefill. *interleaved* (``False``) puts
its first row there and adds one more to each frame, so that text may still arrive while speech has begun.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import get_args

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import role_ids
from megatalker.errors import InvalidRequestError
from megatalker.plugins.graphs import GraphCapture
from megatalker.prompt.plan import Layout, PromptPlan
from megatalker.prompt.rows import PromptRows

logger = logging.getLogger(__name__)

WARM_ROWS = 512
"""Rows that warm-up embeds at once: as many as long texts have."""
CAPTURED_TOGETHER = 8
"""Most texts in a call that are built one by one from a captured graph; more of them are faster in shared operations.
"""
CAPTURED_LENGTHS = 128
"""Longest text that is captured, in tokens: a long sentence."""
HEADS = 256
"""Heads that are remembered: a voice, language and instruction each, some tens of kB."""


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


@dataclass(frozen=True, slots=True)
class PromptText:
    """The text of one prompt, and how it is to be spoken."""

    ids: Sequence[int]
    """Ids of the text alone (:func:`megatalker.checkpoint.template.text_ids`), or of its beginning."""
    plan: PromptPlan
    """The plan that :meth:`~megatalker.prompt.plan.PromptPlanner.plan` returned."""
    complete: bool = True
    """No text will follow. With ``False``, at least :attr:`PromptPlan.ids_needed` ids must be given, and rows do not
    depend on how the text is split; their last bits may then differ from the official prompt's."""


@dataclass(frozen=True, slots=True)
class _Body:
    """A prompt after its head. Both sides are rows in parts, equally many, to be added."""

    text: list[Tensor]
    codec: list[Tensor]
    trailing: Tensor


class CapturedBodies:
    """CUDA graphs of whole texts without reference codes, by layout and length: one launch instead of fifteen.

    Args:
        rows: where texts are looked up.
        body: computes, of a layout and the embedded text ``[n, text width]``, the rows after a prompt's head, and the
            trailing rows.
        capture: :class:`~megatalker.plugins.graphs.GraphCapture`.
    """

    def __init__(
        self,
        rows: PromptRows,
        body: Callable[[Layout, Tensor], tuple[Tensor, Tensor]],
        capture: Callable[[Callable[[], tuple[Tensor, Tensor]]], Callable[[], tuple[Tensor, Tensor]]],
    ) -> None:
        self._rows = rows
        self._text = rows.embed([0] * CAPTURED_LENGTHS)
        self._captured = {
            (layout, length): capture(partial(body, layout, self._text[:length]))
            for layout in get_args(Layout)
            for length in range(CAPTURED_LENGTHS, 0, -1)  # smaller ones fit into the memory that the largest one took
        }

    def get(self, layout: Layout, ids: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Return the body of this text, which the next call overwrites; ``None``: its length was not captured.

        Raises:
            InvalidRequestError: an id outside the text vocabulary.
        """
        captured = self._captured.get((layout, len(ids)))
        if captured is None:
            return None
        self._rows.embed(ids, into=self._text[: len(ids)])
        return captured()


class PromptBuilder:
    """Builds the prompts of one checkpoint. Holds the text projection, a few rows, and the heads used last."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        config, self._device = checkpoint.config, device
        self._rows = PromptRows(checkpoint, device, dtype)
        # one projection for the three, as officially: their last bits depend on it
        special = self._rows.text([config.tts_bos_id, config.tts_eos_id, config.tts_pad_id])
        self._begin, self._end, self._pad = torch.split(special, 1)  # [1, H] each
        self.end_row: Tensor = self._end[0]
        """``[H]``: closes the text."""
        self.pad_row: Tensor = self._pad[0]
        """``[H]``: stands where there is no text."""
        self._role = self._rows.text(role_ids(checkpoint.tokenizer))
        self._codec_pad, self._codec_begin = torch.split(
            self._rows.codec([config.codec_pad_id, config.codec_bos_id]), 1
        )
        self._captured: CapturedBodies | None = None
        self._head = lru_cache(HEADS)(self._compute_head)

    def build_all(self, texts: Sequence[PromptText]) -> list[Prompt]:
        """Compute the rows of prompts; what is read from the checkpoint goes to the device in one piece.

        Raises:
            InvalidRequestError: of some prompt: no text, an id outside the vocabulary, or text that may follow an
                ``upfront`` prompt.
        """
        for text in texts:
            _check_text(text)
        alone = [self._build_captured(text) if len(texts) <= CAPTURED_TOGETHER else None for text in texts]
        others = iter(self._build_together([text for text, done in zip(texts, alone, strict=True) if done is None]))
        return [next(others) if done is None else done for done in alone]

    def _build_together(self, texts: Sequence[PromptText]) -> list[Prompt]:
        if not texts:
            return []
        heads = [self._head_of(text.plan) for text in texts]
        bodies = [self._body(text, rows) for text, rows in zip(texts, self._text_rows(texts), strict=True)]
        # text and codec side of all prompts, added at once: hundreds of launches less where many begin
        said = torch.cat([rows for body in bodies for rows in body.text])
        coded = torch.cat([rows for body in bodies for rows in body.codec])
        lengths = [sum(map(len, body.text)) for body in bodies]
        parts = chain.from_iterable(zip(heads, torch.split(said + coded, lengths), strict=True))
        whole = [len(head) + own for head, own in zip(heads, lengths, strict=True)]
        prompts = torch.split(torch.cat(list(parts)), whole)
        return [
            Prompt(embeds, body.trailing, self.pad_row, text.complete, len(head))
            for text, head, body, embeds in zip(texts, heads, bodies, prompts, strict=True)
        ]

    def warmup(self) -> None:
        """Prepare a GPU: load the kernels that multiply the rows of a text, which differ by its length; lock the host
        memory that texts are copied from; and capture the work for a single text, so that it takes one launch, not
        fifteen. Without this the first text of each length waits up to 3 ms.
        """
        if self._device.type != "cuda" or self._captured is not None:
            return
        self._rows.embed([0] * WARM_ROWS)
        try:
            self._captured = CapturedBodies(self._rows, self._captured_body, GraphCapture(self._device))
        except RuntimeError as error:  # of torch: no memory is left, or what that made of the capture
            logger.warning("prompts take up to a millisecond longer, for they could not be captured: %s", error)

    def _captured_body(self, layout: Layout, embedded: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows.project(embedded, _official_calls(layout, len(embedded)))
        body = self._plain_body(rows, layout, complete=True)
        return torch.cat(body.text) + torch.cat(body.codec), body.trailing

    def _build_captured(self, text: PromptText) -> Prompt | None:
        """The prompt of a text like one that was captured."""
        if self._captured is None or not text.complete or text.plan.voice.reference_codes is not None:
            return None
        body = self._captured.get(text.plan.layout, text.ids)
        if body is None:
            return None
        head, (rows, trailing) = self._head_of(text.plan), body
        whole = torch.cat([head, rows, trailing])  # the next text overwrites the captured tensors
        return Prompt(whole[: -len(trailing)], whole[-len(trailing) :], self.pad_row, True, len(head))

    def text_rows(self, ids: Sequence[int]) -> Tensor:
        """Return rows ``[n, H]`` of text that arrived after the prompt was built; they do not depend on how the text
        was split.

        Raises:
            InvalidRequestError: an id outside the text vocabulary.
        """
        return self._rows.project_split(self._rows.embed(ids))

    def frame_rows(self, codes: Tensor) -> Tensor:
        """``[N, code groups]`` integer -> ``[N, H]``: the sum of each frame's code embeddings, in the official order.

        Raises:
            InvalidRequestError: another shape or type, or a code outside the codebook.
        """
        return self._rows.frames(codes)

    # --------------------------------------------------------------------------------------------------------- layouts

    def _text_rows(self, texts: Sequence[PromptText]) -> list[Tensor]:
        """``[n, H]`` each, from calls of as many rows as officially; whole texts share everything else."""
        whole = [text for text in texts if text.complete]
        if not whole:
            return list(map(self._rows_so_far, texts))
        ids = list(map(_ids, whole))
        calls = chain.from_iterable(
            [len(own)] if text.plan.voice.reference_codes is not None else _official_calls(text.plan.layout, len(own))
            for text, own in zip(whole, ids, strict=True)
        )
        rows = self._rows.project(self._rows.embed(list(chain.from_iterable(ids))), list(calls))
        done = iter(torch.split(rows, list(map(len, ids))))
        return [next(done) if text.complete else self._rows_so_far(text) for text in texts]

    def _rows_so_far(self, text: PromptText) -> Tensor:
        """Return :meth:`text_rows` of the beginning of a text, which more may follow."""
        embedded = self._rows.embed(_ids(text))
        if text.plan.voice.reference_codes is not None:
            return self._rows.project_split(embedded)
        return torch.cat([self._rows.project(embedded[:1]), self._rows.project_split(embedded[1:])])

    def _body(self, text: PromptText, rows: Tensor) -> _Body:
        codes = text.plan.voice.reference_codes
        if codes is not None:
            return self._in_context(rows, self._rows.frames(codes), text.plan.layout, text.complete)
        return self._plain_body(rows, text.plan.layout, text.complete)

    def _plain_body(self, rows: Tensor, layout: Layout, complete: bool) -> _Body:
        if layout == "upfront":
            codec = [self._codec_pads(len(rows) + 1), self._codec_begin]
            return _Body([rows, self._end, self._pad], codec, self._pad)
        return _Body([rows[:1]], [self._codec_begin], self._closed(rows[1:], complete))

    def _in_context(self, rows: Tensor, frames: Tensor, layout: Layout, complete: bool) -> _Body:
        text, codec = self._closed(rows, complete), [self._codec_begin, frames]
        frames_at = 1 + len(frames)
        if layout == "upfront":
            said = [text, self._pad.expand(frames_at, -1)]
            return _Body(said, [self._codec_pads(len(text)), *codec], self._pad)
        missing, rest = max(0, frames_at - len(text)), text[frames_at:]
        said = [text[:frames_at], self._pad.expand(missing, -1)]
        return _Body(said, codec, rest if len(rest) or not complete else self._pad)

    def _codec_pads(self, count: int) -> Tensor:
        return self._codec_pad.expand(count, -1)

    def _closed(self, rows: Tensor, complete: bool) -> Tensor:
        """These text rows, and the end of the text if it is there."""
        return torch.cat([rows, self._end]) if complete else rows

    # ------------------------------------------------------------------------------------------------------------ head

    def _head_of(self, plan: PromptPlan) -> Tensor:
        x_vector = plan.voice.x_vector
        spoken_by = None if x_vector is None else tuple(x_vector.tolist())
        return self._head(plan.instruct_ids, plan.tags, plan.speaker_id, spoken_by)

    def _compute_head(
        self,
        instruct: tuple[int, ...],
        tags: tuple[int, ...],
        speaker_id: int | None,
        x_vector: tuple[float, ...] | None,
    ) -> Tensor:
        """Instruct turn, role, tags and speaker: everything before the row that begins speech."""
        codec = self._rows.codec(tags)
        if speaker_id is not None:
            codec = torch.cat([codec, self._rows.codec([speaker_id])])
        elif x_vector is not None:
            codec = torch.cat([codec, torch.tensor(x_vector).to(codec).unsqueeze(0)])
        text = torch.cat([self._pad.expand(len(codec), -1), self._begin])
        parts = [self._role, text + torch.cat([codec, self._codec_pad])]
        if instruct:
            parts.insert(0, self._rows.text(instruct))
        return torch.cat(parts)


def _ids(text: PromptText) -> list[int]:
    return [*(text.plan.voice.reference_text_ids or ()), *text.ids]


def _official_calls(layout: Layout, rows: int) -> list[int]:
    """Return the sizes of the official package's projections of text rows, where there are no reference codes."""
    return [1, rows - 1] if layout == "interleaved" else [rows]


def _check_text(text: PromptText) -> None:
    if not text.ids:
        raise InvalidRequestError("the text is empty; expected at least one token")
    if text.complete:
        return
    if text.plan.layout == "upfront":
        raise InvalidRequestError(
            "layout 'upfront' needs the whole text first; use 'interleaved' while text still arrives"
        )
    needed = text.plan.ids_needed
    if len(text.ids) < needed:
        raise InvalidRequestError(
            f"this in-context voice needs {needed} text ids, or the end of the text, before speech can begin; "
            f"got {len(text.ids)}"
        )

"""Talker and code predictor of one checkpoint with the state of all their rows, in four compilable units.

One frame is: :func:`begin` (code 0, and the predictor's first position), :func:`choose_next` for the later codes in
equal runs, the talker's layers in equal groups (:func:`~megatalker_backends.compiled.stack.step_layers`), and
:func:`finish`.
The units are functions of tensors of static shape, so each can be compiled once and everything can be captured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig
from megatalker.sampling import CodeVocabulary, SamplerRows
from megatalker_backends.compiled.ops import linear, rms_norm, rope_table
from megatalker_backends.compiled.stack import LayerCache, Step, empty_cache, prefill_layers, step_layers
from megatalker_backends.compiled.weights import ModelWeights, load_weights

SPAN_STEP = 64
"""The looked-at part of the talker's cache is a multiple of this many positions: whole vector registers, so that the
order of summation, and with it the last bit, does not depend on the longest stream of a batch."""
MAX_GROUP = 4
MAX_RUN = 3
"""Talker layers, and codes chosen, in one unit for a single stream on a CPU, at most. There each call of a unit costs
as much as a layer of a small model, and larger units take longer to compile. Elsewhere units are as small as can be."""


class Rows(NamedTuple):
    """Pending values of each stream row between its steps. The last row is scratch: padding and warm-up use it."""

    logits: Tensor
    """``[rows, talker vocab]`` float32: for code 0 of the next frame."""
    hidden: Tensor
    """``[rows, hidden_size]`` float32: the talker's last hidden state."""


class Codes(NamedTuple):
    """Results of the predictor half of a frame."""

    codes: Tensor
    """``[B, groups]`` int64; the first may be end-of-speech, the others mean nothing then."""
    first_logits: Tensor
    """``[B, talker vocab]`` float32"""
    rest_logits: Tensor
    """``[B, groups - 1, predictor vocab]`` float32"""


def begin(
    weights: ModelWeights,
    sampler: SamplerRows,
    pending: Rows,
    caches: Sequence[LayerCache],
    step: Step,
    rows: Tensor,
    forced: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose code 0 and run the predictor over the talker's hidden state.

    Args:
        weights: of the model.
        sampler: read only.
        pending: read only.
        caches: the predictor's; position 0 is written.
        step: the predictor's position 0.
        rows: ``[B]`` int64 stream rows.
        forced: ``[B]`` int64; negative where the code is to be chosen.

    Returns:
        Code 0 ``[B]``, its logits, and the noise of the later codes ``[B, groups - 1, predictor vocab]``.
    """
    logits = pending.logits.index_select(0, rows)
    code = torch.where(forced < 0, sampler.choose_first(rows, logits), forced)
    heads = weights.rest_heads
    noise = sampler.rest_noise(rows, len(heads), heads[0].shape[0])
    hidden = pending.hidden.index_select(0, rows)
    if weights.projection is not None:
        hidden = linear(hidden, weights.projection[0]) + weights.projection[1]
    step_layers(weights.predictor.shape, weights.predictor.layers, caches, hidden, step)
    return code, logits, noise


def choose_next(
    weights: ModelWeights,
    sampler: SamplerRows,
    caches: Sequence[LayerCache],
    steps: Sequence[Step],
    rows: Tensor,
    heads: Sequence[Tensor],
    offsets: Tensor,
    previous: Tensor,
    noise: Tensor,
    forced: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run the predictor over one code to choose the next, several times.

    Args:
        weights: of the model.
        sampler: read only.
        caches: the predictor's.
        steps: the predictor's positions, from 1 on, of each of ``n`` codes.
        rows: ``[B]`` int64 stream rows.
        heads: of each code to choose.
        offsets: ``[n]`` int64: where the table of the code before each begins.
        previous: ``[B]`` int64: the code before the first.
        noise: ``[B, n, predictor vocab]``.
        forced: ``[B, n]`` int64; negative where the code is to be chosen.

    Returns:
        The codes ``[B, n]`` int64 and their logits ``[B, n, predictor vocab]`` float32.
    """
    stack, codes, logits = weights.predictor, [previous], []
    for index, (step, head) in enumerate(zip(steps, heads, strict=True)):
        x = F.embedding(codes[-1] + offsets[index], weights.predictor_embeddings).float()
        x = step_layers(stack.shape, stack.layers, caches, x, step)
        row = linear(rms_norm(x, stack.norm, stack.shape.rms_norm_eps), head)
        chosen = sampler.choose_rest(rows, row, 1, noise[:, index])
        codes.append(torch.where(forced[:, index] < 0, chosen, forced[:, index]))
        logits.append(row)
    return torch.stack(codes[1:], dim=1), torch.stack(logits, dim=1)


def finish(
    weights: ModelWeights, sampler: SamplerRows, pending: Rows, x: Tensor, rows: Tensor, first_codes: Tensor
) -> None:
    """Turn the last layer's output ``[B, hidden]`` into what is pending, and end the frame for the sampler."""
    hidden = rms_norm(x, weights.talker.norm, weights.talker.shape.rms_norm_eps)
    pending.hidden[rows] = hidden
    pending.logits[rows] = linear(hidden, weights.head)
    sampler.advance(rows, first_codes)


@dataclass(frozen=True, slots=True)
class Units:
    """The four units, as they are or compiled."""

    begin: Callable[..., tuple[Tensor, Tensor, Tensor]] = begin
    choose_next: Callable[..., tuple[Tensor, Tensor]] = choose_next
    step_layers: Callable[..., Tensor] = step_layers
    finish: Callable[..., None] = finish


PLAIN = Units()


class Model:
    """Weights and state. Calls change only the rows they name.

    Args:
        checkpoint: whose talker and predictor.
        max_streams: stream rows, besides the scratch row.
        max_positions: of each row.
        device: where.
        dtype: of weights, keys and values.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, max_streams: int, max_positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        config = checkpoint.config
        self.config: ModelConfig = config
        self.device, self.dtype = device, dtype
        self.scratch_row = max_streams
        self.cache_positions = -(-max_positions // SPAN_STEP) * SPAN_STEP
        self.weights = load_weights(checkpoint, device, dtype)
        self.sampler = SamplerRows(max_streams + 1, CodeVocabulary.from_config(config), device)
        self.pending = Rows(
            torch.zeros(max_streams + 1, config.talker.vocab_size, device=device),
            torch.zeros(max_streams + 1, config.talker.hidden_size, device=device),
        )
        talker, predictor, groups = config.talker, config.predictor, config.num_code_groups
        self._talker_cache = empty_cache(talker, max_streams + 1, self.cache_positions, device, dtype)
        self._talker_rope = rope_table(self.cache_positions, talker.head_dim, talker.rope_theta, device)
        self._predictor_cache = empty_cache(predictor, max_streams, groups, device, dtype)
        self._predictor_rope = rope_table(groups, predictor.head_dim, predictor.rope_theta, device)
        self._counting = torch.arange(max(self.cache_positions, max_streams, groups), device=device)
        self._steps: dict[int, tuple[Step, ...]] = {}

    def prefill(self, row: Tensor, embeds: Tensor, last: Tensor) -> None:
        """Run a prompt and make its next logits pending.

        Args:
            row: ``[1]`` int64.
            embeds: ``[T, hidden_size]`` of any float type; rows after ``last`` are padding.
            last: ``[1]`` int64: index of the prompt's last row.
        """
        weights, length = self.weights.talker, embeds.shape[0]
        cos, sin = (table[:length] for table in self._talker_rope)
        x = prefill_layers(weights, self._talker_cache, embeds.float(), row, cos, sin)
        hidden = rms_norm(x.index_select(0, last), weights.norm, weights.shape.rms_norm_eps)
        self.pending.hidden.index_copy_(0, row, hidden)
        self.pending.logits.index_copy_(0, row, linear(hidden, self.weights.head))

    def predict(self, units: Units, rows: Tensor, forced: Tensor) -> Codes:
        """All codes of the rows' next frame, from what is pending. ``forced``: ``[B, groups]``, negative where free."""
        weights, shared = self.weights, (self.weights, self.sampler)
        steps = self._predictor_steps(rows.shape[0])
        first, first_logits, noise = units.begin(
            *shared, self.pending, self._predictor_cache, steps[0], rows, forced[:, 0]
        )
        codes, logits = [first.unsqueeze(1)], []
        size = self._unit_size(rows, len(weights.rest_heads), MAX_RUN)
        for start in range(0, len(weights.rest_heads), size):
            run, later = slice(start, start + size), slice(start + 1, start + 1 + size)
            parts = units.choose_next(
                *shared,
                self._predictor_cache,
                steps[later],
                rows,
                weights.rest_heads[run],
                weights.offsets[run],
                codes[-1][:, -1].contiguous(),
                noise[:, run],
                forced[:, later],
            )
            codes.append(parts[0])
            logits.append(parts[1])
        return Codes(torch.cat(codes, dim=1), first_logits, torch.cat(logits, dim=1))

    def talk(self, units: Units, rows: Tensor, positions: Tensor, codes: Tensor, text: Tensor, length: int) -> None:
        """The talker step that makes the next logits pending.

        Args:
            units: plain or compiled.
            rows: ``[B]`` int64.
            positions: ``[B]`` int64: where the step is written.
            codes: ``[B, groups]`` int64 of the frame.
            text: ``[B, hidden_size]`` of any float type.
            length: positions of the cache to look at, a multiple of :data:`SPAN_STEP`, above every position.
        """
        weights = self.weights
        x = F.embedding(codes + weights.offsets, weights.embeddings).float().sum(1) + text.float()
        cos, sin = (table.index_select(0, positions) for table in self._talker_rope)
        step = Step(rows, positions, self._counting[:length], cos, sin)
        size = self._unit_size(rows, len(self._talker_cache), MAX_GROUP)
        for start in range(0, len(self._talker_cache), size):
            part = slice(start, start + size)
            x = units.step_layers(weights.talker.shape, weights.talker.layers[part], self._talker_cache[part], x, step)
        units.finish(weights, self.sampler, self.pending, x, rows, codes[:, 0])

    def _unit_size(self, rows: Tensor, parts: int, most: int) -> int:
        """How many of equal parts, layers or codes, one call of a unit covers."""
        if self.device.type != "cpu" or len(rows) > 1:
            return 1
        return max(size for size in range(1, most + 1) if parts % size == 0)

    def _predictor_steps(self, batch: int) -> tuple[Step, ...]:
        """The predictor's cache is used anew for each frame, by place in the batch."""
        if batch not in self._steps:
            groups, counting = self.config.num_code_groups, self._counting
            self._steps[batch] = tuple(
                Step(
                    counting[:batch],
                    counting[index : index + 1].repeat(batch),
                    counting[:groups],
                    *(table[index : index + 1].repeat(batch, 1) for table in self._predictor_rope),
                )
                for index in range(groups)
            )
        return self._steps[batch]

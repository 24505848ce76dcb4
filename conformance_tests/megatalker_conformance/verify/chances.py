"""Probabilities of codes, as transformers' own logits processors make them of logits.

transformers comes with the official package, and is imported where it is used: other parts of a verification run
without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker.sampling import SamplingParams

EDGE = 1e-5
"""Share of the probability within which rounding decides whether an id belongs to a nucleus."""
TIE = 2e-4
"""Scores this close, relative to their size, change places by rounding."""


@dataclass(frozen=True)
class BarredIds:
    """Ids that the official package never lets code 0 be, or not at first."""

    suppressed: tuple[int, ...]
    end: int
    """End of speech."""


@dataclass(frozen=True)
class Chances:
    """Probabilities of one choice after another."""

    of_ids: Tensor
    """``[choices, vocab]`` float64."""
    edges: Tensor
    """``[choices, vocab]`` bool: ids that have no probability, and would have some if scores were off by rounding."""

    def of(self, drawn: Tensor) -> Tensor:
        """Return the probabilities ``[choices]`` of these ids."""
        return self.of_ids.gather(1, drawn[:, None]).squeeze(1)

    def among(self, ids: Tensor) -> Tensor:
        """Return the probability ``[choices]`` that the choice is one of ``ids``, ``[choices, vocab]`` bool."""
        return (self.of_ids * ids).sum(1)


def first_chances(logits: Tensor, sampling: SamplingParams, history: Sequence[int], barred: BarredIds) -> Chances:
    """Return the probabilities of code 0; the choice of row ``n`` comes after ``history[:n]``.

    Args:
        logits: ``[frames, vocab]`` raw, float32 on the CPU.
        sampling: of the stream.
        history: code 0 of its frames.
        barred: ids that the official package bars.
    """
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        MinNewTokensLengthLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SuppressTokensLogitsProcessor,
    )

    rules = [
        RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)),
        MinNewTokensLengthLogitsProcessor(0, sampling.min_new_tokens, barred.end, device="cpu"),
        SuppressTokensLogitsProcessor(list(barred.suppressed), device="cpu"),
    ]
    said = torch.tensor([history], dtype=torch.int64).view(1, -1)
    shape = LogitsProcessorList(rules)
    rows = [shape(said[:, :frame], row[None].clone()) for frame, row in enumerate(logits)]
    return _filtered(torch.cat(rows), sampling.temperature, sampling.top_k, sampling.top_p)


def later_chances(logits: Tensor, sampling: SamplingParams) -> Chances:
    """Return the probabilities of the predictor's codes, from raw logits ``[choices, vocab]``."""
    filters = sampling.predictor_temperature, sampling.predictor_top_k, sampling.predictor_top_p
    return _filtered(logits, *filters)


def _filtered(logits: Tensor, temperature: float, top_k: int | None, top_p: float) -> Chances:
    from transformers.generation.logits_process import (
        LogitsProcessor,
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    nothing = torch.zeros(len(logits), 1, dtype=torch.int64)

    def warp(*warpers: LogitsProcessor) -> Tensor:
        shaped: Tensor = LogitsProcessorList(list(warpers))(nothing, logits.clone())
        return shaped

    heat = TemperatureLogitsWarper(float(temperature))
    of_k = [] if top_k is None else [TopKLogitsWarper(top_k)]
    of_p = [TopPLogitsWarper(top_p)] if top_p < 1 else []
    wider = [TopPLogitsWarper(top_p + EDGE)] if top_p + EDGE < 1 else []
    shaped, scores = warp(heat, *of_k, *of_p), warp(heat)
    kept = shaped.isfinite()
    size = torch.where(scores.isfinite(), scores, 0).square().mean(1, keepdim=True).sqrt()
    weakest = torch.where(kept, scores, torch.inf).amin(1, keepdim=True)
    edges = (scores >= weakest - TIE * size) | warp(heat, *of_k, *wider).isfinite()
    return Chances(shaped.double().softmax(-1), edges & ~kept)

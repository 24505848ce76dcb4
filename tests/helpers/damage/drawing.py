"""Damages of the sampler that every backend and the oracle share: no comparison of two of them can show these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import checkpoint
from megatalker.sampling import CodeVocabulary, SamplerRows, SamplingParams

Spoil = Callable[[pytest.MonkeyPatch], None]


def _params(change: Callable[[SamplingParams], dict[str, Any]]) -> Spoil:
    """Return a damage that takes other values than those asked for."""
    assign = SamplerRows.assign

    def wrong(self: SamplerRows, row: int, params: SamplingParams, history: Sequence[int] = ()) -> None:
        assign(self, row, replace(params, **change(params)), history)

    return lambda patch: patch.setattr(SamplerRows, "assign", wrong)


def _noise(change: Callable[[Callable[..., Tensor], SamplerRows, Tensor, int, int, int], Tensor]) -> Spoil:
    """Return a damage of the noise."""
    right = SamplerRows._noise

    def wrong(self: SamplerRows, rows: Tensor, first: int, codebooks: int, size: int) -> Tensor:
        return change(right, self, rows, first, codebooks, size)

    return lambda patch: patch.setattr(SamplerRows, "_noise", wrong)


def _same_each_frame(
    right: Callable[..., Tensor], sampler: SamplerRows, rows: Tensor, first: int, codebooks: int, size: int
) -> Tensor:
    frames, sampler._frame = sampler._frame, torch.zeros_like(sampler._frame)
    try:
        return right(sampler, rows, first, codebooks, size)
    finally:
        sampler._frame = frames


def _window(frames: int) -> Spoil:
    """Return a damage that forgets all that was said, each time that many ``frames`` have passed."""
    advance = SamplerRows.advance

    def wrong(self: SamplerRows, rows: Tensor, first_codes: Tensor) -> None:
        advance(self, rows, first_codes)
        self._seen &= (self._frame % frames != 0)[:, None]

    return lambda patch: patch.setattr(SamplerRows, "advance", wrong)


def _barred(change: Callable[[CodeVocabulary], CodeVocabulary]) -> Spoil:
    right = CodeVocabulary.from_config
    return lambda patch: patch.setattr(CodeVocabulary, "from_config", lambda config: change(right(config)))


def _both(name: str, change: Callable[[Any], Any]) -> Callable[[SamplingParams], dict[str, Any]]:
    """Change a value of code 0 and of later codes."""
    return lambda params: {key: change(getattr(params, key)) for key in (name, f"predictor_{name}")}


DRAWS: Mapping[str, Spoil] = {
    "temperature ignored": _params(_both("temperature", lambda _: 1.0)),
    "temperature a fifth too high": _params(_both("temperature", lambda value: min(1e6, 1.2 * value))),
    "no noise": _noise(lambda right, *rest: torch.zeros_like(right(*rest))),
    "noise of half its size": _noise(lambda right, *rest: 0.5 * right(*rest)),
    "the same noise in each frame": _noise(_same_each_frame),
    "the same noise in each codebook": _noise(lambda right, *rest: right(*rest)[:, :1].expand(-1, rest[3], -1)),
    "seeds ignored": _params(lambda params: {"seed": 0}),
    "top-k one too many": _params(_both("top_k", lambda value: value and value + 1)),
    "top-p ignored": _params(_both("top_p", lambda _: 1.0)),
    "top-p of 0.6 taken for 0.5": _params(_both("top_p", lambda value: min(value, 0.5))),
    "penalty applied twice": _params(lambda params: {"repetition_penalty": params.repetition_penalty**2}),
    "no penalty": _params(lambda params: {"repetition_penalty": 1.0}),
    "penalty over a window of 20 frames": _window(20),
}
"""Found by counts of this checkpoint's draws."""
EDGES: Mapping[str, Spoil] = {
    "top-k one too few": _params(_both("top_k", lambda value: value and value - 1)),
    "top-k 49 for 50": _params(_both("top_k", lambda value: 49 if value == 50 else value)),
}
"""Found by the same counts of more draws: four codes a frame are a quarter of what verify has."""
ENDS: Mapping[str, Spoil] = {
    "end of speech a frame too early": _params(lambda params: {"min_new_tokens": max(0, params.min_new_tokens - 1)}),
    "end of speech a frame too late": _params(
        lambda params: {"min_new_tokens": min(2**31 - 1, params.min_new_tokens + 1)}
    ),
}
"""Found where the logits are chosen."""


def _default_top_k(patch: pytest.MonkeyPatch) -> None:
    right = checkpoint._sampling
    patch.setattr(checkpoint, "_sampling", lambda *given: replace(right(*given), top_k=49))


DEFAULTS: Mapping[str, Spoil] = {"top-k 49 by default": _default_top_k}
BARRED: Mapping[str, Spoil] = {
    "one code too many is barred": _barred(
        lambda right: replace(right, first_suppressed_id=right.first_suppressed_id - 1)
    ),
    "one special id is not barred": _barred(
        lambda right: replace(right, first_suppressed_id=right.first_suppressed_id + 1)
    ),
}

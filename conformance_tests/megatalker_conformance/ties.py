"""Differences between a backend's codes and the official modules', and the margin by which these prefer theirs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from megatalker.sampling import CodeVocabulary
from megatalker_conformance.choices import Choice
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import FLOAT32_ERROR, Divergence, LogitError
from megatalker_conformance.streams import PLAIN_GREEDY, Codes, StreamCase


@dataclass(frozen=True)
class Margin:
    """Between two codes, in units of logits."""

    apart: float
    """Difference by which the oracle prefers its own code."""
    tie: float
    """Largest difference that rounding explains."""

    @property
    def near(self) -> bool:
        return self.apart <= self.tie

    def __str__(self) -> str:
        return f"which the oracle holds {self.apart:.3g} apart; a near-tie is {self.tie:.3g}"


def sixteen_bit_margin(
    oracle: Oracle, case: StreamCase, frames: int, divergence: Divergence, dtype: torch.dtype, eos_id: int
) -> Margin:
    """Return the margin of a 16-bit run: ties are within twice the official modules' worst error in that type."""
    assert replace(case.sampling, min_new_tokens=0) == replace(PLAIN_GREEDY, min_new_tokens=0), (
        "a near-tie is read off raw logits, so 16-bit runs are compared greedily and without a penalty"
    )
    expected = oracle.codes(case, frames)
    exact = oracle.logits(case, expected)
    rounded = oracle.logits(case, expected, dtype)
    frame, codebook = divergence.frame, divergence.codebook
    if codebook == 0:
        row, official = exact.talker[frame], LogitError.between(rounded.talker, exact.talker)
    else:
        row = exact.predictor[frame, codebook - 1]
        official = LogitError.between(rounded.predictor, exact.predictor)
    ours, theirs = _ids(divergence, eos_id)
    return Margin(float(row[theirs] - row[ours]), official.tie)


def float32_margin(
    oracle: Oracle, case: StreamCase, expected: Sequence[Codes], divergence: Divergence, vocabulary: CodeVocabulary
) -> Margin:
    """Return the margin of a float32 run that should choose ``expected`` after all rules of sampling: a tie is what the
    errors of two float32 logits explain.
    """
    frame, codebook = divergence.frame, divergence.codebook
    before = expected[:frame]
    logits = oracle.follow(case, [*before, None]).logits
    row = (logits.talker[frame] if codebook == 0 else logits.predictor[frame, codebook - 1]).numpy()
    choice = Choice(row, case.sampling, codebook, frame, [codes[0] for codes in before], vocabulary)
    ours, theirs = _ids(divergence, vocabulary.eos_id)
    scores = choice.scores()
    return Margin(float(scores[theirs] - scores[ours]), 2 * FLOAT32_ERROR * float(np.sqrt(np.square(row).mean())))


def _ids(divergence: Divergence, eos_id: int) -> tuple[int, int]:
    ours, theirs = (eos_id if code is None else code for code in (divergence.ours, divergence.theirs))
    return ours, theirs

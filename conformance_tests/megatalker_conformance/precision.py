"""The 16-bit rule: errors against the float32 oracle, bounded by those of ``reference`` in the same type."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker_conformance.streams import Codes, TeacherForced

ERROR_RATIO = 1.5
"""A backend's error may exceed that of the official modules in the same number format by this factor."""
PART_RATIO = 2.0
"""Like ``ERROR_RATIO``, for a single codebook or frame, whose errors scatter more than their mean."""
ROUNDED_RATIO = {16: 1.5, 8: 4.0, 4: 25.0}
"""The same for rounded weights, by their number of bits, in units of the official bfloat16 error."""
ROUNDED_CHOICES = {16: 0.85, 8: 0.85, 4: 0.6}
"""Share of greedy choices, along the oracle's codes, that must be the oracle's."""
FLOAT32_ERROR = 1e-4
"""Root mean square error of one row of float32 logits, relative to that of the logits. Rounding gives about 1e-6; TF32,
float16 and bfloat16 arithmetic give 5e-4 and more."""


@dataclass(frozen=True)
class LogitError:
    """Distance of logits of one kind from the oracle's."""

    rms: float
    peak: float

    @classmethod
    def between(cls, found: Tensor, exact: Tensor) -> "LogitError":
        """Over all logits of two tensors of the same shape."""
        difference = (found - exact).double()
        return cls(float(difference.square().mean().sqrt()), float(difference.abs().max()))

    @property
    def tie(self) -> float:
        """Two logits of the oracle this close may change places: each can be off by ``ERROR_RATIO`` times the peak."""
        return 2 * ERROR_RATIO * self.peak


@dataclass(frozen=True)
class Bound:
    """A figure and what it may be at most."""

    name: str
    value: float
    limit: float
    official: float
    """The same of the official modules in this type."""

    @property
    def held(self) -> bool:
        return self.value <= self.limit


def sixteen_bit_bounds(found: TeacherForced, official: TeacherForced, exact: TeacherForced) -> Iterator[Bound]:
    """Yield the bounds for 16-bit logits.

    Args:
        found: of the backend.
        official: of the official modules in the same type, along the same codes.
        exact: of these in float32.
    """
    for kind, ours, theirs, oracles in (
        ("talker", found.talker, official.talker, exact.talker),
        ("predictor", found.predictor, official.predictor, exact.predictor),
    ):
        yardstick = LogitError.between(theirs, oracles)
        error = LogitError.between(ours, oracles).rms
        yield Bound(f"{kind} error", error, ERROR_RATIO * yardstick.rms, yardstick.rms)
        flip, official_flip = (widest_flip(logits, oracles) for logits in (ours, theirs))
        yield Bound(f"{kind} argmax differs across gaps", flip, yardstick.tie, official_flip)
    ours_by, official_by = (row_errors(logits, exact) for logits in (found, official))
    for kind, mean in (("codebook", 0), ("frame", 1)):
        ours, theirs = (errors.square().mean(mean).sqrt() for errors in (ours_by, official_by))
        worst = int((ours / theirs).argmax())
        own = float(theirs[worst])
        yield Bound(f"error of {kind} {worst}", float(ours[worst]), PART_RATIO * own, own)


def rounded_bounds(found: TeacherForced, official: TeacherForced, exact: TeacherForced, bits: int) -> Iterator[Bound]:
    """Yield the bounds for logits from rounded weights.

    Args:
        found: of the backend.
        official: of the official modules in bfloat16, along the same codes.
        exact: of these in float32.
        bits: of a weight.
    """
    for kind, ours, theirs, oracles in (
        ("talker", found.talker, official.talker, exact.talker),
        ("predictor", found.predictor, official.predictor, exact.predictor),
    ):
        yardstick = LogitError.between(theirs, oracles).rms
        error = LogitError.between(ours, oracles).rms
        yield Bound(f"{kind} error", error, ROUNDED_RATIO[bits] * yardstick, yardstick)
        missed, official_missed = (1 - equal_choices(logits, oracles) for logits in (ours, theirs))
        yield Bound(f"{kind} choices that differ", missed, 1 - ROUNDED_CHOICES[bits], official_missed)


def equal_choices(found: Tensor, exact: Tensor) -> float:
    """Return the share of rows whose largest logit is at the same id."""
    return float((found.argmax(-1) == exact.argmax(-1)).float().mean())


def row_errors(found: TeacherForced, exact: TeacherForced) -> Tensor:
    """Errors of each frame and codebook, ``[frames, code groups]``: root mean square error divided by the root mean
    square of the exact logits; infinite for NaN. A mean would hide one bad row.
    """

    def errors(ours: Tensor, theirs: Tensor) -> Tensor:
        scale = theirs.double().square().mean(-1).sqrt()
        error = (ours - theirs).double().square().mean(-1).sqrt() / scale
        return error.nan_to_num(nan=torch.inf)

    talker = errors(found.talker, exact.talker).unsqueeze(1)
    return torch.cat((talker, errors(found.predictor, exact.predictor)), dim=1)


def widest_flip(found: Tensor, exact: Tensor) -> float:
    """The widest gap between the oracle's logits of its own argmax and of that of ``found``; 0 when all agree."""
    chosen = exact.gather(-1, found.argmax(-1, keepdim=True)).squeeze(-1)
    return float((exact.amax(-1) - chosen).max())


@dataclass(frozen=True)
class Divergence:
    """The first difference of two runs."""

    frame: int
    codebook: int
    ours: int | None
    theirs: int | None

    def __str__(self) -> str:
        return f"frame {self.frame}, codebook {self.codebook}: {self.ours}, oracle {self.theirs}"


def first_divergence(found: Sequence[Codes], expected: Sequence[Codes]) -> Divergence | None:
    """The first code that differs; a run that stops early differs at codebook 0 of the missing frame."""
    for frame, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        for codebook, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return Divergence(frame, codebook, one, other)
    if len(found) == len(expected):
        return None
    frame = min(len(found), len(expected))
    ours_ended = len(found) == frame
    return Divergence(frame, 0, None if ours_ended else found[frame][0], expected[frame][0] if ours_ended else None)

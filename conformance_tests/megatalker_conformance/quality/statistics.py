"""Paired comparison of two sides: an interval by bootstrap, the verdict, and the power that the size had."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["not worse", "worse", "cannot tell"]

CONFIDENCE = 0.95
"""Level of the two-sided interval: a side that is worse by the margin is called not worse in 2.5 % of all trials."""
RESAMPLES = 9999
FEWEST = 20
"""Prompts, below which the bootstrap's interval is too narrow to say anything."""
PLUS = 2
"""Prompts that are added on either side of zero where values are counts; see :func:`compare`."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """One figure of two sides, over the same prompts. All of it in the figure's own unit."""

    name: str
    margin: float
    """A loss below this is none."""
    control: float
    """Mean of the official package."""
    ours: float
    loss: float
    """By how much ours is worse, in the mean over prompts; negative: better."""
    low: float
    high: float
    """95 % interval of the loss."""
    error: float
    """Standard error of the loss."""
    prompts: int

    @property
    def verdict(self) -> Verdict:
        """``not worse``: the whole interval lies below the margin. ``worse``: the whole interval lies above it."""
        if self.prompts < FEWEST:
            return "cannot tell"
        if self.high < self.margin:
            return "not worse"
        return "worse" if self.low > self.margin else "cannot tell"

    @property
    def power(self) -> float:
        """Chance that a trial of this size calls sides ``not worse`` that are equal."""
        if self.error == 0:
            return 1.0
        return _NORMAL.cdf(self.margin / self.error - self._quantile)

    @property
    def detectable(self) -> float:
        """The loss that a trial of this size calls ``worse`` with a chance of 80 %."""
        return self.margin + (self._quantile + _NORMAL.inv_cdf(0.8)) * self.error

    @property
    def prompts_needed(self) -> int:
        """Prompts with which equal sides are called ``not worse`` with a chance of 80 %."""
        ratio = (self._quantile + _NORMAL.inv_cdf(0.8)) * self.error / self.margin
        return max(FEWEST, int(np.ceil(self.prompts * ratio**2)))

    @property
    def _quantile(self) -> float:
        return _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)


def compare(
    name: str, margin: float, control: Sequence[float], ours: Sequence[float], *, smaller_is_better: bool, step: float
) -> PairedComparison:
    """Compare two sides prompt by prompt.

    A prompt is one draw, however many seeds it was spoken with: takes of one prompt resemble each other. Where errors
    are counted and rare, no difference may have been seen though there is one; so, as in the "plus four" interval of
    Agresti and Coull, two prompts that are a ``step`` better and two that are a ``step`` worse go into the resampling.

    Args:
        name: of the figure.
        margin: positive, in its unit.
        control: ``[prompts]``, the official package's figure of each.
        ours: the same of the other side.
        smaller_is_better: for error rates.
        step: the smallest difference of one prompt, an error in one take; 0 where figures are not counts.

    Raises:
        ValueError: the two differ in length, or are empty.
    """
    theirs, own = np.asarray(control, float), np.asarray(ours, float)
    if theirs.shape != own.shape or theirs.ndim != 1 or not len(own):
        raise ValueError(f"expected two lists of one length, found {theirs.shape} and {own.shape}")
    losses = own - theirs if smaller_is_better else theirs - own
    means = _bootstrap(np.concatenate([losses, np.full(PLUS, step), np.full(PLUS, -step)]) if step else losses)
    loss = float(losses.mean())
    centred = means - means.mean() + loss
    low, high = np.quantile(centred, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    sides = float(theirs.mean()), float(own.mean())
    return PairedComparison(name, margin, *sides, loss, float(low), float(high), float(means.std()), len(own))


def overall(comparisons: Sequence[PairedComparison]) -> Verdict:
    """``worse`` if any figure is; ``not worse`` only if all are."""
    verdicts = {comparison.verdict for comparison in comparisons}
    if "worse" in verdicts:
        return "worse"
    return "not worse" if verdicts == {"not worse"} else "cannot tell"


def _bootstrap(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[RESAMPLES]``: means of samples with replacement, the same on every machine."""
    found, counts = np.unique(values, return_counts=True)  # counts of errors have few values
    chance, parts = np.random.default_rng(0), []
    most = max(1, 4_000_000 // len(found))
    for start in range(0, RESAMPLES, most):
        draws = chance.multinomial(len(values), counts / len(values), size=min(most, RESAMPLES - start))
        parts.append(draws @ found / len(values))
    return np.concatenate(parts)

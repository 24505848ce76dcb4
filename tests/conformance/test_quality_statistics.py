"""The statistics of a trial: against closed forms, and against simulated trials whose truth is known."""

from collections.abc import Iterable
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from megatalker_conformance.quality import statistics
from megatalker_conformance.quality.statistics import PairedComparison, Verdict, compare, overall

TRIALS = 200
MARGIN, STEP = 0.3, 10.0
"""Points of error rate; texts of ten words."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 499)


def counted(losses: Iterable[float]) -> PairedComparison:
    own = np.array(list(losses))
    return compare("errors", MARGIN, np.zeros(len(own)), own, smaller_is_better=True, step=STEP)


def measured(losses: NDArray[np.float64]) -> PairedComparison:
    return compare("similarity", 0.01, np.full(len(losses), 0.9), 0.9 - losses, smaller_is_better=False, step=0)


def simulated(prompts: int, worse: float, better: float, seed: int) -> list[PairedComparison]:
    """Trials in which this share of prompts has an error more, and this one an error less."""
    chance = np.random.default_rng(seed)
    draws = chance.choice([STEP, -STEP, 0.0], size=(TRIALS, prompts), p=[worse, better, 1 - worse - better])
    return [counted(losses) for losses in draws]


def share(trials: Iterable[PairedComparison], verdict: Verdict) -> float:
    return float(np.mean([trial.verdict == verdict for trial in trials]))


def test_the_interval_is_that_of_the_closed_form() -> None:
    losses = np.random.default_rng(1).normal(0.002, 0.02, 400)
    found = measured(losses)
    half = 1.96 * losses.std() / sqrt(400)
    assert found.loss == pytest.approx(losses.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.04)
    assert found.error == pytest.approx(half / 1.96, rel=0.04)


def test_better_is_a_negative_loss_for_either_kind_of_figure() -> None:
    assert compare("errors", 1, [2.0] * 30, [1.0] * 30, smaller_is_better=True, step=0).loss == -1
    assert compare("similarity", 1, [2.0] * 30, [1.0] * 30, smaller_is_better=False, step=0).loss == 1


def test_sides_that_are_worse_by_the_margin_are_seldom_called_not_worse(quick: None) -> None:
    """At most 2.5 % should be; the standard error of the simulation is 0.8 %."""
    assert share(simulated(300, 0.04, 0.01, seed=2), "not worse") <= 0.045
    assert share(simulated(1000, 0.03, 0.0, seed=3), "not worse") <= 0.045
    draws = np.random.default_rng(4).normal(0.01, 0.03, (TRIALS, 100))
    assert share(map(measured, draws), "not worse") <= 0.045


def test_equal_sides_are_not_called_worse(quick: None) -> None:
    assert share(simulated(100, 0.1, 0.1, seed=5), "worse") <= 0.01
    draws = np.random.default_rng(6).normal(0, 0.03, (TRIALS, 50))
    assert share(map(measured, draws), "worse") == 0


@pytest.mark.parametrize(("prompts", "differing"), [(1000, 0.005), (3000, 0.01), (1000, 0.05)])
def test_the_power_is_how_often_equal_sides_are_called_not_worse(quick: None, prompts: int, differing: float) -> None:
    trials = simulated(prompts, differing, differing, seed=7)
    assert share(trials, "not worse") == pytest.approx(np.mean([trial.power for trial in trials]), abs=0.08)


def test_four_of_five_losses_of_the_stated_size_are_called_worse(quick: None) -> None:
    typical = np.repeat([-0.03, 0.03], 50)
    draws = np.random.default_rng(9).normal(measured(typical).detectable, 0.03, (TRIALS, 100))
    assert share(map(measured, draws), "worse") == pytest.approx(0.8, abs=0.07)


def test_as_many_prompts_as_stated_give_the_power_of_80_percent() -> None:
    few = measured(np.random.default_rng(10).normal(0, 0.1, 200))
    many = measured(np.random.default_rng(11).normal(0, 0.1, few.prompts_needed))
    assert few.power < 0.5
    assert many.power == pytest.approx(0.8, abs=0.1)


def test_errors_that_were_not_seen_are_not_taken_for_none() -> None:
    assert counted([0.0] * 100).verdict == "cannot tell"
    assert counted([0.0] * 5000).verdict == "not worse"


def test_very_few_prompts_tell_nothing() -> None:
    assert measured(np.full(19, 0.5)).verdict == "cannot tell"
    assert measured(np.full(20, 0.5)).verdict == "worse"


def test_all_figures_must_hold() -> None:
    good, bad = measured(np.zeros(50)), measured(np.full(50, 0.5))
    unsure = counted([0.0] * 50)
    assert overall([good, good]) == "not worse"
    assert overall([good, unsure]) == "cannot tell"
    assert overall([good, unsure, bad]) == "worse"
    assert overall([]) == "cannot tell"


@pytest.mark.parametrize(("control", "ours"), [([], []), ([1.0], [1.0, 2.0])])
def test_lists_that_do_not_pair_are_refused(control: list[float], ours: list[float]) -> None:
    with pytest.raises(ValueError, match="two lists of one length"):
        compare("errors", 1, control, ours, smaller_is_better=True, step=0)

"""Compares the sides of a trial that was spoken and judged."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from megatalker.cli.bench.report import command_line
from megatalker.cli.verify.quality_options import CONTROL
from megatalker_conformance.quality.normaliser import IN_CHARACTERS
from megatalker_conformance.quality.result import Faults, QualityResult, SideResult
from megatalker_conformance.quality.sound import RUNAWAY
from megatalker_conformance.quality.statistics import PairedComparison, compare
from megatalker_conformance.quality.store import Take
from megatalker_conformance.quality.trial import QualityTrial

ERROR_MARGIN, SIMILARITY_MARGIN, OPINION_MARGIN = 0.3, 0.01, 0.1
"""Losses that count: points of error rate, cosine, points of opinion."""


def judge_trial(trial: QualityTrial) -> QualityResult:
    """Return the result of a trial of which :meth:`QualityTrial.run` has done everything."""
    kinds: dict[str, str] = {kind: judge.version for kind, judge in trial.judges.items()}
    options, prompts = trial.options, trial.prompts
    return QualityResult(
        command_line(),
        trial.environment,
        kinds,
        prompts.source,
        prompts.licence,
        prompts.digest,
        prompts.language,
        len(prompts.prompts),
        options.seeds,
        [_side(trial, name) for name in trial.sides[1:]],
        {name: _faults(trial, name) for name in trial.sides},
        _worst(trial),
    )


def _side(trial: QualityTrial, name: str) -> SideResult:
    def compared(kind: Any, figure: str, margin: float, step: float = 0) -> PairedComparison:
        both = (_means(trial, kind, CONTROL), _means(trial, kind, name))
        return compare(figure, margin, *both, smaller_is_better=kind == "recogniser", step=step)

    decisive: list[PairedComparison] = []
    opinion = None
    if "recogniser" in trial.judges:
        unit = "character errors" if trial.prompts.language in IN_CHARACTERS else "word errors"
        units = statistics.mean(len(trial.normaliser(prompt.text)) for prompt in trial.prompts.prompts)
        decisive.append(compared("recogniser", f"{unit} (points)", ERROR_MARGIN, 100 / units))
    if "similarity" in trial.judges:
        decisive.append(compared("similarity", "similarity", SIMILARITY_MARGIN))
    if "opinion" in trial.judges:
        opinion = compared("opinion", "opinion", OPINION_MARGIN)
    return SideResult(name, decisive, opinion)


def _means(trial: QualityTrial, kind: Any, side: str) -> list[float]:
    """The figure of each prompt, in the mean over its seeds."""
    return [
        statistics.mean(_figure(trial, kind, take) for take in trial.of_prompt(side, index))
        for index in range(len(trial.prompts.prompts))
    ]


def _figure(trial: QualityTrial, kind: Any, take: Take) -> float:
    return 100 * trial.error_rate(take) if kind == "recogniser" else float(trial.answer(kind, take))


def is_runaway(trial: QualityTrial, take: Take) -> bool:
    """Whether a take lasts far longer than its prompt does elsewhere."""
    return bool(trial.folder.record(take)["seconds"] > RUNAWAY * trial.seconds[take.index])


def _faults(trial: QualityTrial, side: str) -> Faults:
    takes = trial.takes(side)
    records = [trial.folder.record(take) for take in takes]
    leading = [record["leading_s"] for record in records if not record["silent"]]
    gaps = [record["gaps"] for record in records if record.get("gaps") is not None]
    return Faults(
        len(takes),
        sum(is_runaway(trial, take) for take in takes),
        sum(record["silent"] for record in records),
        sum(record["clipped"] for record in records),
        1000 * statistics.median(leading) if leading else 0.0,
        sum(gaps) if gaps else None,
    )


def _worst(trial: QualityTrial) -> Sequence[Mapping[str, Any]]:
    rows = []
    for index, prompt in enumerate(trial.prompts.prompts):
        takes = {name: worst_take(trial, name, index) for name in trial.sides}
        figures = {name: _told(trial, take) for name, take in takes.items()}
        rows.append({"index": index, "prompt": prompt.name, "text": prompt.text, "takes": figures})
    return sorted(rows, key=lambda row: _loss(row["takes"]), reverse=True)


def worst_take(trial: QualityTrial, side: str, index: int) -> Take:
    """The take of a prompt that has most errors, or resembles its voice least."""
    return max(trial.of_prompt(side, index), key=lambda take: _badness(_told(trial, take)))


def _told(trial: QualityTrial, take: Take) -> dict[str, Any]:
    told: dict[str, Any] = {"seed": take.seed, "seconds": trial.folder.record(take)["seconds"]}
    if "recogniser" in trial.judges:
        told |= {"heard": trial.answer("recogniser", take), "errors": 100 * trial.error_rate(take)}
    for kind in ("similarity", "opinion"):
        if kind in trial.judges:
            told[kind] = trial.answer(kind, take)
    return told | {"runaway": is_runaway(trial, take), "silent": trial.folder.record(take)["silent"]}


def _badness(told: Mapping[str, Any]) -> tuple[float, float]:
    return told.get("errors", 0.0), -told.get("similarity", 0.0)


def _loss(takes: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """By how much the worst of ours is worse than the official package's."""
    control = _badness(takes[CONTROL])
    errors, similarity = zip(*(_badness(told) for name, told in takes.items() if name != CONTROL), strict=True)
    return max(errors) - control[0], max(similarity) - control[1]

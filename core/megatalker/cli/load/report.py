"""What loads came to, as data, table, JSON file and plot."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.table import Table

from megatalker.cli.load.drive import Heard
from megatalker.cli.load.traffic import Pattern

PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Case:
    """One load. Milliseconds are ``None`` where nothing was heard."""

    pattern: Pattern
    amount: float
    seconds: float
    requests: int
    heard: int
    """Requests of which a chunk came."""
    first_chunk_ms: dict[str, float] | None
    """From the request to the first chunk in the listener's hands: p50, p95, p99, max."""
    audible_ms: dict[str, float] | None
    """From the request to the first sample above silence, played."""
    underruns: int
    """Times that a listener's playback ran dry."""
    listeners_with_underruns: int
    worst_gap_ms: float
    errors: dict[str, int]
    speech_s_per_s: float
    listening_cores: float
    """Processor time of all listeners, a second of measurement."""
    engine: dict[str, Any] | None
    """Of the engine's metrics, what was added by this load; ``None`` of a server."""

    @classmethod
    def of(cls, heard: Heard, engine: dict[str, Any] | None) -> Self:
        """Summarise."""
        players = heard.players
        first = [player.first_at - player.requested_at for player in players if player.first_at is not None]
        audible = [player.audible_at - player.requested_at for player in players if player.audible_at is not None]
        return cls(
            pattern=heard.traffic.pattern,
            amount=heard.traffic.amount,
            seconds=heard.seconds,
            requests=len(players),
            heard=len(first),
            first_chunk_ms=percentiles_ms(first),
            audible_ms=percentiles_ms(audible),
            underruns=sum(player.underruns for player in players),
            listeners_with_underruns=sum(player.underruns > 0 for player in players),
            worst_gap_ms=max((player.worst_gap_s for player in players), default=0.0) * 1e3,
            errors=dict(Counter(player.error for player in players if player.error is not None)),
            speech_s_per_s=heard.audio_s / heard.seconds,
            listening_cores=heard.listening_s / heard.seconds,
            engine=engine,
        )

    @property
    def borne(self) -> bool:
        """Everybody was heard without a gap."""
        return not self.underruns and not self.errors and self.heard == self.requests


@dataclass(frozen=True, slots=True)
class LoadReport:
    """All loads of one command."""

    command: str
    environment: dict[str, str]
    settings: dict[str, Any]
    script: dict[str, Any]
    """What every request says, and how: :class:`~megatalker.cli.load.drive.Script`."""
    cases: Sequence[Case]
    capacity: int | None = None
    """Endless streams at once without an underrun, where that was searched."""


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p95, p99 and max of durations, in milliseconds; ``None`` if there are none."""
    if not seconds:
        return None
    milliseconds = np.array(seconds) * 1e3
    found = {f"p{percent}": float(np.percentile(milliseconds, percent)) for percent in PERCENTS}
    return found | {"max": float(milliseconds.max())}


def table(report: LoadReport) -> Table:
    """A row for each load; times are milliseconds."""
    first = [f"first p{percent}" for percent in PERCENTS]
    shown = Table("load", "asked", *first, "audible p95", "gaps", "worst gap", "speech s/s", "errors")
    for case in report.cases:
        shown.add_row(
            _label(case),
            str(case.requests),
            *(_shown(case.first_chunk_ms, percent) for percent in PERCENTS),
            _shown(case.audible_ms, 95),
            str(case.underruns),
            f"{case.worst_gap_ms:.0f}",
            f"{case.speech_s_per_s:.1f}",
            str(sum(case.errors.values()) or "-"),
        )
    return shown


def errors(report: LoadReport) -> list[str]:
    """A line for each load that had errors: how many of which kind."""
    return [
        f"errors of {_label(case)}: {', '.join(f'{count} {kind}' for kind, count in case.errors.items())}"
        for case in report.cases
        if case.errors
    ]


def _label(case: Case) -> str:
    unit = {"streams": "streams", "rate": "a second", "burst": "at once"}
    return f"{case.amount:g} {unit[case.pattern]}"


def _shown(percentiles: dict[str, float] | None, percent: int) -> str:
    return "-" if percentiles is None else f"{percentiles[f'p{percent}']:.1f}"


def save(report: LoadReport, folder: Path) -> list[Path]:
    """Write ``load.json``, and ``load.png`` if matplotlib (extra ``bench``) is installed; returns what was written."""
    target = folder / "load.json"
    target.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    try:
        import matplotlib as mpl
    except ImportError:
        return [target]
    mpl.use("agg")
    return [target, _plot(report, folder / "load.png")]


def _plot(report: LoadReport, target: Path) -> Path:
    from matplotlib import pyplot as plt

    names: dict[Pattern, str] = {"streams": "endless streams", "rate": "requests a second", "burst": "requests at once"}
    patterns = [pattern for pattern in names if any(case.pattern == pattern for case in report.cases)]
    figure, axes = plt.subplots(1, len(patterns), figsize=(5 * len(patterns), 3.6), squeeze=False)
    for axis, pattern in zip(axes[0], patterns, strict=True):
        cases = sorted((case for case in report.cases if case.pattern == pattern), key=lambda case: case.amount)
        axis.set_xlabel(names[pattern])
        if pattern == "streams":
            for case in cases:
                axis.plot(case.amount, case.speech_s_per_s, "o", color="#4477aa" if case.borne else "#cc6677")
            axis.plot(
                [case.amount for case in cases], [case.speech_s_per_s for case in cases], color="#bbbbbb", zorder=0
            )
            axis.set_ylabel("speech, s a second (red: underruns or errors)")
        else:
            for percent in PERCENTS:
                points = [(case.amount, case.first_chunk_ms[f"p{percent}"]) for case in cases if case.first_chunk_ms]
                axis.plot(*zip(*points, strict=True), marker="o", label=f"p{percent}") if points else None
            axis.set_yscale("log")
            axis.set_ylabel("first chunk, ms")
            if axis.lines:  # somebody heard something
                axis.legend(fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(report.environment.get("checkpoint", report.environment.get("server", "")), fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    plt.close(figure)
    return target

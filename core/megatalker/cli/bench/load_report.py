"""The result of ``megatalker load``: what listeners heard under each load, as data, table and plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.table import Table

from megatalker.cli.bench.drive import LoadResult
from megatalker.cli.bench.playback import summary
from megatalker.cli.bench.report import PERCENTS
from megatalker.cli.bench.traffic import Pattern


@dataclass(frozen=True, slots=True)
class LoadCase:
    """One load. Milliseconds are ``None`` where nothing was heard."""

    pattern: Pattern
    amount: float
    seconds: float
    requests: int
    heard: int
    """Requests of which a chunk came."""
    first_chunk_ms: dict[str, float] | None
    """Milliseconds from the request to the first chunk in the listener's hands: p50, p95, p99, max."""
    audible_ms: dict[str, float] | None
    """Milliseconds from the request until the first sample above silence is played."""
    underruns: int
    """Times that a listener's playback ran dry."""
    listeners_with_underruns: int
    worst_gap_ms: float
    errors: dict[str, int]
    speech_s_per_s: float
    listening_cores: float
    """Processor time of all listeners for each second of measurement."""
    engine: dict[str, Any] | None
    """Increase of the engine's counters during this load; ``None`` for a server."""

    @classmethod
    def of(cls, result: LoadResult, engine: dict[str, Any] | None) -> Self:
        """Summarise one load."""
        return cls(
            pattern=result.traffic.pattern,
            amount=result.traffic.amount,
            seconds=result.seconds,
            **summary(result.playbacks),
            speech_s_per_s=result.audio_s / result.seconds,
            listening_cores=result.listening_s / result.seconds,
            engine=engine,
        )

    @property
    def borne(self) -> bool:
        """Whether every request was heard without a gap."""
        return not self.underruns and not self.errors and self.heard == self.requests


@dataclass(frozen=True, slots=True)
class LoadReport:
    """All loads of one command."""

    command: str
    environment: dict[str, str]
    settings: dict[str, Any]
    script: dict[str, Any]
    """Fields of the :class:`~megatalker.cli.bench.drive.Script` that every request follows."""
    cases: Sequence[LoadCase]
    capacity: int | None = None
    """Endless streams at once without an underrun; ``None`` if that was not searched."""


def table(report: LoadReport) -> Table:
    """Show a row for each load; times are milliseconds."""
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
    """Return a line for each load that had errors: how many of which kind."""
    return [
        f"errors of {_label(case)}: {', '.join(f'{count} {kind}' for kind, count in case.errors.items())}"
        for case in report.cases
        if case.errors
    ]


def _label(case: LoadCase) -> str:
    unit = {"streams": "streams", "rate": "a second", "burst": "at once"}
    return f"{case.amount:g} {unit[case.pattern]}"


def _shown(percentiles: dict[str, float] | None, percent: int) -> str:
    return "-" if percentiles is None else f"{percentiles[f'p{percent}']:.1f}"


def plot(report: LoadReport, plt: Any) -> Any:
    """Draw a panel for each pattern of load."""
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
            if axis.lines:  # at least one listener heard speech
                axis.legend(fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(report.environment.get("checkpoint", report.environment.get("server", "")), fontsize=10)
    return figure

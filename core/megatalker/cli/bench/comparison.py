"""The result of ``megatalker bench``: a comparison of backends as data, table and plot."""

import statistics
from dataclasses import dataclass
from typing import Any, Self

import torch
from rich.table import Table

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.metrics import metric
from megatalker.cli.bench.report import command_line, environment_of
from megatalker.settings import Settings


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one backend over all rounds."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, values: list[float]) -> Self:
        if len(values) < 2:
            return cls(values[0], values[0], values[0], len(values))
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        return cls(statistics.median(values), deciles[0], deciles[-1], len(values))


@dataclass(frozen=True, slots=True)
class BackendComparison:
    """A finished measurement: the command, where it ran, and the summary of each metric by backend."""

    command: str
    environment: dict[str, str]
    rounds: int
    frames: int
    results: dict[str, dict[str, Summary]]

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        device: torch.device,
        settings: Settings,
        samples: dict[str, dict[str, list[float]]],
        rounds: int,
        frames: int,
    ) -> Self:
        """Summarise raw samples and note the environment."""
        environment = environment_of(checkpoint, device, settings.dtype, settings.codec)
        results = {
            name: {metric: Summary.of(values) for metric, values in metrics.items()}
            for name, metrics in samples.items()
        }
        return cls(command_line(), environment, rounds, frames, results)

    @property
    def medians(self) -> dict[str, dict[str, float]]:
        """Medians by backend and metric."""
        return {name: {key: each.median for key, each in found.items()} for name, found in self.results.items()}

    @property
    def metrics(self) -> list[str]:
        """Metric names in the order of measurement."""
        return list(dict.fromkeys(name for metrics in self.results.values() for name in metrics))


def table(report: BackendComparison) -> Table:
    """Show medians, and how many times better each is than that of the first backend."""
    names = list(report.results)
    shown = Table("median (p10-p90)", *names, title=" vs ".join(names), title_justify="left")
    for key in report.metrics:
        first = report.results[names[0]].get(key)
        cells = []
        for name in names:
            summary = report.results[name].get(key)
            if summary is None:
                cells.append("-")
                continue
            ratio = f"  {_gain(key, first, summary):.1f}x" if first and name != names[0] else ""
            cells.append(f"{summary.median:.3g} ({summary.p10:.3g}-{summary.p90:.3g}){ratio}")
        shown.add_row(metric(key).label, *cells)
    return shown


def _gain(key: str, first: Summary, other: Summary) -> float:
    gain = first.median / other.median
    return 1 / gain if metric(key).more_is_better else gain


def plot(report: BackendComparison, plt: Any) -> Any:
    """Draw a bar chart for each metric."""
    keys = report.metrics
    columns = 4
    rows = -(-len(keys) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False)
    for axis in axes.flat[len(keys) :]:
        axis.remove()
    for axis, key in zip(axes.flat, keys, strict=False):
        shown = [(name, summaries[key]) for name, summaries in report.results.items() if key in summaries]
        heights = [summary.median for _, summary in shown]
        below = [summary.median - summary.p10 for _, summary in shown]
        above = [summary.p90 - summary.median for _, summary in shown]
        bars = axis.bar(
            [name for name, _ in shown], heights, yerr=[below, above], capsize=3, width=0.6, color="#4477aa"
        )
        axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=8)
        axis.set_title(metric(key).label, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.margins(y=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.environment['checkpoint'].split(' ')[0]} on {report.environment['device']}", fontsize=10)
    return figure

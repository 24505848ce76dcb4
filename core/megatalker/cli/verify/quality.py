"""``megatalker verify --quality``: its progress, and what it prints."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from megatalker.cli.console import say_plainly, stderr, stdout
from megatalker.cli.programs import load_program
from megatalker.cli.verify.quality_options import QualityOptions

if TYPE_CHECKING:
    from megatalker.settings import Settings

LOG_EVERY_S = 30.0
"""Seconds between two lines where there is no terminal."""


class QualityOutcome(Protocol):
    """The result of a trial, as the program returns it."""

    passed: bool
    sentence: str

    def table(self) -> Table:
        """Figures and verdicts."""

    def fault_table(self) -> Table:
        """Faults of the takes."""

    def json(self) -> str:
        """All of it."""


def run_quality(settings: "Settings", options: QualityOptions, json: Path | None) -> bool:
    """Run the trial and print its result; returns whether no side is worse."""
    program: Callable[..., Any] = load_program("quality")
    from megatalker.checkpoint import Checkpoint
    from megatalker.checkpoint.hub import download_bar

    with download_bar() as download:
        opened = Checkpoint.open(settings.checkpoint, progress=download)
    with TrialProgress() as progress:
        result: QualityOutcome = program(opened, settings, options, progress.show)
    stdout.print(result.table())
    stdout.print(result.fault_table())
    stdout.print(result.sentence, markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        json.write_text(result.json(), encoding="utf-8")
    say_plainly(f"wrote {options.out / 'quality.html'} and {options.out / 'quality.json'}")
    return result.passed


class TrialProgress:
    """A context manager: a bar with the time that is left; without a terminal, a line now and then."""

    def __init__(self, log_every_s: float = LOG_EVERY_S) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=stderr, transient=True)
        self._log_every_s = log_every_s
        self._stage, self._began, self._first, self._said = "", 0.0, 0, 0.0

    def show(self, stage: str, done: int, total: int) -> None:
        """Show how much of a stage is done. What was done before the first call of a stage took no time now, and the
        time until its last call without progress, such as that of loading a model, is not spent again.
        """
        now = time.monotonic()
        if stage == self._stage and done == self._first:
            self._began = now
        if stage != self._stage:
            self._stage, self._began, self._first = stage, now, done
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(stage, total=total, completed=done)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        if not stderr.is_terminal and now - self._said >= self._log_every_s:
            self._said = now
            fresh = done - self._first
            left = f", {(now - self._began) * (total - done) / fresh:.0f} s left" if fresh else ""
            say_plainly(f"{stage}: {done} of {total}{left}")

    def __enter__(self) -> Self:
        if stderr.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

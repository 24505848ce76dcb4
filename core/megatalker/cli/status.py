"""Progress of a command that has nothing else to show: a line in the terminal, or an occasional line in a log."""

import logging
import threading
import time
from types import TracebackType
from typing import Self

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from megatalker.cli.console import say_plainly, stderr
from megatalker.serving.background import start_thread

PACKAGES = ("megatalker", "megatalker_backends", "megatalker_kernels")
"""Their loggers tell, at level INFO, what they are about to do."""
LOG_EVERY_S = 5.0
"""Without a terminal: what lasts shorter is not worth a line."""


class Status:
    """A context manager that shows the newest stage, and the time since it was entered.

    A stage is what :meth:`stage` was told, or a message that one of :data:`PACKAGES` logged. In a terminal it stands in
    the last line, which vanishes at the end. Elsewhere a line is printed for a stage that is under way when
    ``log_every_s`` have passed since the line before, at most one for each stage.
    """

    def __init__(self, log_every_s: float = LOG_EVERY_S) -> None:
        column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._progress = Progress(SpinnerColumn(), column, TimeElapsedColumn(), console=stderr, transient=True)
        self._task = self._progress.add_task("")
        self._stage = ""
        self._log_every_s = log_every_s
        self._left = threading.Event()
        self._logger: threading.Thread | None = None
        self._listener = _Listener(self)

    def stage(self, what: str) -> None:
        """Something else is being done now. Thread-safe."""
        self._stage = what
        self.figures(what)

    def figures(self, what: str) -> None:
        """Shown in a terminal only, for what changes all the time."""
        self._progress.update(self._task, description=what)

    def __enter__(self) -> Self:
        for package in PACKAGES:
            logging.getLogger(package).addHandler(self._listener)
        if stderr.is_terminal:
            self._progress.start()
        else:
            self._logger = start_thread(self._log, "megatalker-status")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Show nothing more. May be called again."""
        self._left.set()
        if self._logger is not None:
            self._logger.join()
        if stderr.is_terminal:
            self._progress.stop()
        for package in PACKAGES:
            logging.getLogger(package).removeHandler(self._listener)

    def _log(self) -> None:
        began, said = time.monotonic(), ""
        while not self._left.wait(self._log_every_s):
            stage = self._stage
            if stage != said:
                said = stage
                say_plainly(f"{stage} ({time.monotonic() - began:.0f} s)")


class _Listener(logging.Handler):
    def __init__(self, status: Status) -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:  # warnings are printed
            self._status.stage(record.getMessage())

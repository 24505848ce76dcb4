"""The status line: the newest thing that the packages say they do, and how long it has taken."""

import io
import logging
import re
import threading

import pytest
from rich.console import Console

from megatalker.cli import console, status
from megatalker.cli.status import PACKAGES, Status

GENEROUS_S = 60.0


class Lines(io.StringIO):
    """Printed lines, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            written = super().write(text)
            self._changed.notify_all()
        return written

    def wait_for(self, pattern: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: re.search(pattern, self.getvalue()), GENEROUS_S), self.getvalue()


@pytest.fixture(params=[True, False], ids=["terminal", "log"])
def terminal(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def lines(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    replacement = Console(file=lines, force_terminal=terminal, width=60, _environ={})
    for module in (console, status):
        monkeypatch.setattr(module, "stderr", replacement)
    for package in PACKAGES:
        monkeypatch.setattr(logging.getLogger(package), "level", logging.INFO)
    return lines


@pytest.mark.parametrize("package", PACKAGES)
def test_shows_what_the_packages_log(lines: Lines, package: str) -> None:
    with Status(log_every_s=0.01):
        logging.getLogger(f"{package}.some.where").info("warming up %d of 12: four streams", 3)
        lines.wait_for(r"warming up 3 of 12: four streams.*\d")
    before = lines.getvalue()
    logging.getLogger(f"{package}.some.where").info("afterwards")
    assert lines.getvalue() == before


@pytest.mark.parametrize("terminal", [False], ids=["log"], indirect=True)
def test_a_log_gets_few_lines(lines: Lines, terminal: bool) -> None:
    with Status(log_every_s=GENEROUS_S) as shown:
        shown.stage("quickly done")
    assert lines.getvalue() == ""
    with Status(log_every_s=0.01) as shown:
        shown.stage("loading")
        shown.figures("1.0 s")
        lines.wait_for("loading")
        shown.stage("speaking")
        shown.figures("2.0 s")
        lines.wait_for("speaking")
    assert len(lines.getvalue().splitlines()) == 2
    assert re.fullmatch(r"loading \(\d+ s\)\nspeaking \(\d+ s\)\n", lines.getvalue())


@pytest.mark.parametrize("terminal", [True], ids=["terminal"], indirect=True)
def test_a_terminal_shows_figures_and_one_line_at_most(lines: Lines, terminal: bool) -> None:
    with Status() as shown:
        shown.stage("x" * 500)
        lines.wait_for("xxx…")
        shown.figures("2.0 s")
        lines.wait_for("2.0 s")

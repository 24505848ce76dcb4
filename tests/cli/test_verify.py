"""``megatalker verify``: options, report card, exit status. The checks themselves are in ``tests/conformance``."""

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from megatalker.checkpoint import Checkpoint
from megatalker.cli.main import app
from megatalker.cli.programs import PROGRAMS, imported, load_program
from megatalker.cli.verify.card import Card, Check
from megatalker.cli.verify.order import FRAMES, WORD_ERRORS, VerifyOptions
from megatalker.errors import UnsupportedError

ROOT = Path(__file__).parents[2]
PASSED = Check("codes", "speaker | one", "passed", "equal:\n24 frames", {"frames": 24})
FAILED = Check("codec", "chunks", "failed", "[differ]", {"value": float("inf"), "limit": 1e-4})
INFO = Check("speed", "RTF", "info", "0.2", {"rtf": 0.2})
NOT_RUN = Check("words", "all", "not run", "needs a recogniser")


def card(*checks: Check) -> Card:
    return Card("megatalker verify demo", {"checkpoint": "demo (0123)", "device": "cpu"}, checks)


@pytest.mark.parametrize(
    ("checks", "summary", "passed"),
    [
        ((PASSED, INFO), "PASSED: 1 info, 1 passed", True),
        ((PASSED, NOT_RUN), "PASSED IN PART: 1 not run, 1 passed", True),
        ((PASSED, FAILED, NOT_RUN), "FAILED: 1 failed, 1 not run, 1 passed", False),
        ((INFO, NOT_RUN), "NOTHING PASSED: 1 info, 1 not run", False),
    ],
)
def test_the_verdict(checks: tuple[Check, ...], summary: str, passed: bool) -> None:
    assert (card(*checks).summary, card(*checks).passed) == (summary, passed)


def test_json_has_every_figure_and_is_json() -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(card(PASSED, FAILED).json(), parse_constant=refuse)
    assert content["passed"] is False
    assert content["environment"]["device"] == "cpu"
    assert content["checks"][1]["figures"] == {"value": None, "limit": 1e-4}


def test_markdown_stays_a_table() -> None:
    lines = card(PASSED, FAILED).markdown().splitlines()
    assert lines[0] == "### megatalker verify: demo (0123)"
    assert "**FAILED: 1 failed, 1 passed** by `megatalker verify demo`" in lines
    assert r"| codes | speaker \| one | passed | equal: 24 frames |" in lines
    assert "| codec | chunks | failed | [differ] |" in lines


def test_the_table_shows_all_of_it_in_a_narrow_terminal() -> None:
    console = Console(record=True, width=60)
    console.print(card(PASSED, FAILED).table())
    shown = console.export_text()
    assert "[differ]" in shown
    assert "FAILED" in shown


@pytest.mark.parametrize(("checks", "status"), [((PASSED, NOT_RUN), 0), ((PASSED, FAILED), 1), ((INFO,), 1)])
def test_the_command_writes_the_card_and_exits_with_its_verdict(
    checks: tuple[Check, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[VerifyOptions] = []

    def program(checkpoint: Checkpoint, settings: object, order: VerifyOptions, progress: object) -> Card:
        assert checkpoint.name == "demo"
        asked.append(order)
        return card(*checks)

    monkeypatch.setattr("megatalker.cli.verify.command.load_program", {"verify": program}.__getitem__)
    files = ["--json", str(tmp_path / "new" / "card.json"), "--markdown", str(tmp_path / "card.md")]
    done = CliRunner().invoke(app, ["verify", "demo", "--skip", "words, 16-bit", *files])
    assert done.exit_code == status, done.output
    assert card(*checks).summary in done.output
    assert json.loads((tmp_path / "new" / "card.json").read_text())["passed"] is (status == 0)
    assert (tmp_path / "card.md").read_text() == card(*checks).markdown()
    assert asked == [VerifyOptions(frames=FRAMES, word_errors=WORD_ERRORS, skip=frozenset({"words", "16-bit"}))]


def test_an_unknown_part_is_refused_by_name_before_anything_runs() -> None:
    done = CliRunner().invoke(app, ["verify", "/nowhere", "--skip", "wrods"])
    assert done.exit_code == 2
    assert "no part 'wrods'" in done.output


def test_the_program_is_registered_and_missing_ones_are_named() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][PROGRAMS]
    for name, value in declared.items():
        assert callable(imported(EntryPoint(name, value, PROGRAMS)))
    with pytest.raises(UnsupportedError, match="brings the program 'nothing' along"):
        load_program("nothing")
    with pytest.raises(UnsupportedError, match="cannot run 'some': no_such_package is missing"):
        imported(EntryPoint("some", "no_such_package:main", PROGRAMS))

"""Numbers that make no sense, and places where no result can be kept, are found out before anything is measured."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import error_of, megatalker
from megatalker.cli.options import make_folder, prepare_file
from megatalker.errors import InvalidRequestError
from megatalker_benchmarks.report import add_json_option, number, whole
from megatalker_kernels import diff

NOWHERE = Path("/proc/results")


def test_a_folder_is_made_and_nothing_left_in_it(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "new" / "results")
    assert list((tmp_path / "new" / "results").iterdir()) == []


def test_what_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"folder '/proc/results' cannot be written to: .*; name another"):
        make_folder(NOWHERE)
    with pytest.raises(InvalidRequestError, match="'/proc/self' cannot be written to"):
        make_folder(Path("/proc/self"))  # which is there
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(InvalidRequestError, match="cannot be written to"):
        make_folder(taken)
    with pytest.raises(InvalidRequestError, match="cannot be written to"):
        prepare_file(NOWHERE / "card.json")
    with pytest.raises(InvalidRequestError, match="is a folder, expected a file"):
        prepare_file(tmp_path)


def test_programs_refuse_a_file_before_they_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_json_option(parser)
    assert parser.parse_args(["--json", str(tmp_path / "found.json")]).json == tmp_path / "found.json"
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", str(NOWHERE / "found.json")])
    assert "argument --json: the folder '/proc/results' cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("file", [NOWHERE / "cases.json", NOWHERE.parent])
def test_the_comparison_of_kernels_refuses_a_file_before_it_begins(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        diff.main(["--json", str(file)])
    assert f"--json is '{file}', expected a file in a folder that is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (whole(), "0", "a whole number from 1 on"),
        (whole(), "1.5", "a whole number from 1 on"),
        (whole(0), "-1", "a whole number from 0 on"),
        (number(), "0", "a number above 0"),
        (number(), "nan", "a number above 0"),
        (number(), "inf", "a number above 0"),
        (number(zero=True), "-0.1", "a number from 0 on"),
        (number(zero=True), "much", "a number from 0 on"),
    ],
)
def test_programs_refuse_numbers_that_make_no_sense(kind: Callable[[str], float], text: str, expected: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}', expected {expected}"):
        kind(text)


def test_programs_take_all_others() -> None:
    assert (whole()("1"), whole(0)("0"), number()("0.5"), number(zero=True)("0")) == (1, 0, 0.5, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--out", str(NOWHERE)),
        ("load", "--burst", "1", "--out", str(NOWHERE)),
        ("verify", "--json", str(NOWHERE / "card.json")),
        ("verify", "--markdown", str(NOWHERE / "card.md")),
    ],
)
def test_commands_refuse_a_folder_before_they_measure(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = megatalker(*command, "--backend", "reference", cwd=tmp_path)
    assert done.returncode == 1
    assert "the folder '/proc/results' cannot be written to" in error_of(done.stderr)
    assert "loading" not in done.stderr

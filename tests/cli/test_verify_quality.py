"""``megatalker verify --quality``: its options, what it prints, and its exit status."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from typer.testing import CliRunner

from megatalker.cli.main import app
from megatalker.cli.verify import quality
from megatalker.cli.verify.quality import TrialProgress
from megatalker.cli.verify.quality_options import QualityOptions, read_forms, read_size
from megatalker.errors import SettingsError


@dataclass
class Outcome:
    """The result of a trial that was not run."""

    passed: bool
    sentence: str = "This is the sentence."

    def table(self) -> Table:
        return Table("verdict")

    def fault_table(self) -> Table:
        return Table("faults")

    def json(self) -> str:
        return "{}\n"


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_options_reach_the_trial_and_its_verdict_is_the_status(
    passed: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[QualityOptions] = []

    def program(checkpoint: Any, settings: Any, options: QualityOptions, progress: Any) -> Outcome:
        assert (checkpoint.name, settings.backend) == ("demo", "reference")
        asked.append(options)
        progress("ours speaks", 1, 2)
        return Outcome(passed)

    monkeypatch.setattr(quality, "load_program", {"quality": program}.__getitem__)
    options = ["--size", "all", "--seeds", "3", "--compare", "int8, int4", "--prompts", "seed-tts-eval"]
    options += ["--out", str(tmp_path / "trial"), "--similarity", "none", "--recogniser", "whisper:small"]
    options += ["--json", str(tmp_path / "new" / "copy.json"), "--backend", "reference"]
    done = CliRunner().invoke(app, ["verify", "demo", "--quality", *options])
    assert done.exit_code == status, done.output
    assert "This is the sentence." in done.output
    assert (tmp_path / "new" / "copy.json").read_text() == "{}\n"
    (found,) = asked
    assert (found.size, found.seeds, found.compare, found.prompts) == (None, 3, ("int8", "int4"), "seed-tts-eval")
    assert (found.out, found.similarity, found.recogniser) == (tmp_path / "trial", "none", "whisper:small")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quality", "--size", "none"], "a size of 'none' cannot be"),
        (["--quality", "--compare", "int2"], "there is no form 'int2'"),
        (["--quality", "--skip", "words"], "goes without --quality only"),
        (["--prompts", "texts.txt"], "needs --quality"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["verify", "/nowhere", *options], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert message in done.output


def test_sizes_and_forms() -> None:
    assert (read_size("all"), read_size("12"), read_forms("int8,int8, fast")) == (None, 12, ("int8", "fast"))
    for wrong in ("0", "-1", "1.5", ""):
        with pytest.raises(SettingsError, match="cannot be"):
            read_size(wrong)


def test_progress_tells_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = iter([0.0, 100.0, 110.0, 120.0, 130.0])
    monkeypatch.setattr(quality, "say_plainly", said.append)
    monkeypatch.setattr(quality.time, "monotonic", clock.__next__)
    with TrialProgress(log_every_s=10) as progress:
        for done in (40, 40, 45, 50):  # a model is loaded between the first two
            progress.show("ours speaks", done, 100)
        progress.show("reader listens", 0, 100)
    assert said == [
        "ours speaks: 40 of 100",
        "ours speaks: 45 of 100, 110 s left",
        "ours speaks: 50 of 100, 100 s left",
        "reader listens: 0 of 100",
    ]

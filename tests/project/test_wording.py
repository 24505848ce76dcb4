"""Sentences, names, commit subjects and amounts of code that `make lint` refuses."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))

import budget  # noqa: E402 - programs of the repository, in no package
import wording  # noqa: E402

DOCSTRINGS = [
    "Of streams between two launches.",
    "As above, of a step of the codec.",
    "Which streams begin, or go on, in the next launch.",
    "Whose turn is it?",
    "Who goes next.",
    "What the device has done.",
]
LINES = [
    "Others had so much time of the device.",
    "Newcomers take turns with the others.",
    "- Requests come no faster than the host serves them with those who play.",
    "# a pass beside streams takes 30 ms",
    "That is for whoever fills it to heed.",
]
SUBJECTS = [
    "Make requests that arrive while others are being served wait for their turn in a queue",
    "Added a check",
    "a full engine is one setting in two tests",
    "Fix the queue.",
]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run git in a repository that the checks take for this one; it has one commit, the base."""

    def run(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    run("init")
    (tmp_path / "page.md").write_text("Newcomers stood here before.\n")
    (tmp_path / "module.py").write_text("class Queue:\n    pass\n")
    run("add", ".")
    run("commit", "-m", "Whatever was said before is left alone")
    run("tag", "base")
    for module in (wording, budget):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(wording, "SHARED_NAMES", frozenset())
    monkeypatch.setattr(sys, "argv", ["wording.py", "--base", "base"])
    return run


def exit_status() -> int:
    with pytest.raises(SystemExit) as left:
        wording.main()
    return int(left.value.code or 0)


def test_planted_sentences_subjects_and_names_fail(
    tmp_path: Path, git: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status() == 0
    with (tmp_path / "page.md").open("a") as page:
        page.write("\n".join(LINES) + "\n")
    functions = [f'def f{number}():\n    """{text}"""\n' for number, text in enumerate(DOCSTRINGS)]
    (tmp_path / "planted.py").write_text("".join(functions) + "class Queue:\n    pass\n")
    git("add", ".")
    for subject in SUBJECTS:
        git("commit", "--allow-empty", "-m", subject)
    assert exit_status() == 1
    found = capsys.readouterr().err.splitlines()
    for planted in (*LINES, *(subject[:60] for subject in SUBJECTS)):
        assert any(planted in line for line in found), planted
    for number in range(len(DOCSTRINGS)):
        assert any(f"planted.py:{2 * number + 2}: a docstring begins with" in line for line in found), number
    assert any("2 classes are named Queue" in line for line in found)


def test_a_name_on_the_list_must_still_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"one.py": "class Queue: ...", "two.py": "class Queue: ..."}
    monkeypatch.setattr(wording, "SHARED_NAMES", {"Queue"})
    assert not list(wording.faults_of_tree(sources))
    assert list(wording.faults_of_tree({"one.py": sources["one.py"]}))


def test_lint_runs_both_checks() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "release/wording.py" in recipe[1]
    assert "release/budget.py" in recipe[1]


@pytest.mark.parametrize(
    "line",
    [
        '    """Return the next launch."""',
        "Streams wait until their client reads.",
        "pass  # so many ways",
        "newcomers(1)",
    ],
)
def test_plain_sentences_pass(line: str) -> None:
    assert not list(wording.faults_of_line(line))


@pytest.mark.parametrize("subject", ["Add a check of wording", "Feed text in pieces", "Bring uvloop with the server"])
def test_good_subjects_pass(subject: str) -> None:
    assert not list(wording.faults_of_subject(subject))


def test_more_lines_than_the_budget_fail(tmp_path: Path, git: Callable[..., None]) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "core").mkdir()
    file, code = tmp_path / budget.FILE, tmp_path / "core" / "module.py"
    file.write_text("[lines]\ncore = 2\n")
    code.write_text("a = 1\nb = 2\n")
    git("add", ".")
    git("commit", "-m", "Count lines")
    assert not list(budget.faults("base"))
    code.write_text("a = 1\nb = 2\nc = 3\n")
    (fault,) = budget.faults("base")
    assert "core has 3 lines, at most 2" in fault
    file.write_text("[lines]\ncore = 3\n")
    git("commit", "-am", "Allow a line more")
    (fault,) = budget.faults("base")
    assert "raises core without a line 'Budget: why'" in fault
    git("commit", "--amend", "-m", "Allow a line more\n\nBudget: a third value is needed.")
    assert not list(budget.faults("base"))

"""What `make lint` refuses in new sentences and commit subjects."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))

import wording  # noqa: E402 - a program of the repository, in no package


@pytest.mark.parametrize(
    "line",
    [
        '    """Of streams between two launches."""',
        '"""As above, of a step of the codec."""',
        '    """Which streams begin, or go on, in the next launch."""',
        '    """Whose turn is it?"""',
        'r"""Who goes next."""',
        "Others had so much time of the device.",
        "Newcomers take turns with the others.",
        "- Requests come no faster than the host serves them with those who play.",
        "# a pass beside streams takes 30 ms",
        "That is for whoever fills it to heed.",
    ],
)
def test_a_sentence_that_cannot_be_read_alone_is_refused(line: str) -> None:
    assert list(wording.faults_of_line(line))


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


@pytest.mark.parametrize(
    "subject",
    [
        "Make requests that arrive while others are being served wait for their turn in a queue",
        "Added a check",
        "a full engine is one setting in two tests",
        "Fix the queue.",
    ],
)
def test_subjects_of_commits_are_short_imperatives(subject: str) -> None:
    assert list(wording.faults_of_subject(subject))


@pytest.mark.parametrize("subject", ["Add a check of wording", "Feed text in pieces", "Bring uvloop with the server"])
def test_good_subjects_pass(subject: str) -> None:
    assert not list(wording.faults_of_subject(subject))


def test_the_program_finds_what_was_added_since_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    page = tmp_path / "page.md"
    git("init")
    page.write_text("Newcomers stood here before.\n")
    git("add", ".")
    git("commit", "-m", "Whatever was said before is left alone")
    git("tag", "base")
    page.write_text("Newcomers stood here before.\nNewcomers are here again.\n")
    git("commit", "-am", "Adding a line")
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    monkeypatch.setattr(wording, "__file__", str(tmp_path / "release" / "wording.py"))
    first, second = wording.faults("base")
    assert "begins with 'Adding'" in first
    assert "page.md" in second
    assert "are here again" in second

"""``megatalker lexicon check`` and the options of ``megatalker say`` about what is said."""

from pathlib import Path

import pytest

from commands import megatalker, one_line
from megatalker.checkpoint import Checkpoint

pytestmark = pytest.mark.slow
WORDS = '"Nguyen" = "Win"\n\n[english]\n"Sean" = "Shawn"\n"sql" = "sequel"\n'


@pytest.fixture
def lexicon(tmp_path: Path) -> str:
    (tmp_path / "words.toml").write_text(WORDS)
    return "words.toml"


def test_a_lexicon_is_checked_and_counted(lexicon: str, tmp_path: Path) -> None:
    done = megatalker("lexicon", "check", lexicon, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "every language: 1 words\nenglish: 2 words\n")


def test_a_text_is_shown_as_it_is_said(lexicon: str, tmp_path: Path) -> None:
    text = ("--text", "Sean Nguyen has 2 SQL servers.")
    for arguments, said in [
        ((), "Shawn Win has 2 sequel servers."),
        (("--language", "en", "--normalize"), "Shawn Win has two sequel servers."),
        (("--language", "german", "--normalize"), "Sean Win has zwei SQL servers."),
    ]:
        done = megatalker("lexicon", "check", lexicon, *text, *arguments, cwd=tmp_path)
        assert done.stdout.splitlines()[-1] == said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"a" = 5\n', "'a': the respelling is 5, expected text"),
        ("a b\n", "is no TOML: "),
        (None, "lexicon 'words.toml' does not exist"),
    ],
)
def test_what_is_wrong_is_said(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "words.toml").write_text(content)
    done = megatalker("lexicon", "check", "words.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert message in one_line(done.stderr)
    assert "Traceback" not in done.stderr


def test_an_unknown_language_is_refused(lexicon: str, tmp_path: Path) -> None:
    done = megatalker("lexicon", "check", lexicon, "--text", "x", "--language", "elvish", cwd=tmp_path)
    assert done.returncode == 1
    assert "unknown language 'elvish', expected auto or one of german, english" in one_line(done.stderr)


def test_say_speaks_what_the_text_means(tiny_custom_voice: Checkpoint, lexicon: str, tmp_path: Path) -> None:
    order = ("--checkpoint", str(tiny_custom_voice.folder), "--seed", "3", "--language", "english")
    rewritten = megatalker(
        "say", "Sean has 2.", *order, "--normalize", "--lexicon", lexicon, "-o", "a.wav", cwd=tmp_path
    )
    plain = megatalker("say", "Shawn has two.", *order, "-o", "b.wav", cwd=tmp_path)
    assert (rewritten.returncode, plain.returncode) == (0, 0), rewritten.stderr
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_say_refuses_to_rewrite_raw_text(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    done = megatalker("say", "5 km", "--checkpoint", folder, "--raw-text", "--normalize", "-o", "a.wav", cwd=tmp_path)
    assert done.returncode == 1
    assert "normalize changes the text, and clean_text=False" in one_line(done.stderr)

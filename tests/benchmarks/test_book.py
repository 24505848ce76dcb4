"""A short run of ``megatalker bench book``; the long one's result lies under ``benchmarks/results``."""

import json
from pathlib import Path

import pytest

from megatalker.cli.read.book import read_book
from megatalker_benchmarks import book


def test_a_book_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    words = book.write_book(tmp_path / "a.txt", 21, 1)
    assert book.write_book(tmp_path / "b.txt", 21, 1) == words
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    assert 21 * book.WORDS_A_PAGE <= words < 21 * (book.WORDS_A_PAGE + 80)
    chapters = read_book(tmp_path / "a.txt").chapters
    assert [chapter.title for chapter in chapters] == ["Chapter 1", "Chapter 2", "Chapter 3"]
    assert sum(len(text.split()) for chapter in chapters for text in chapter.paragraphs[1:]) == words
    book.write_book(tmp_path / "c.txt", 21, 2)
    assert (tmp_path / "c.txt").read_bytes() != (tmp_path / "a.txt").read_bytes()


@pytest.mark.slow
def test_a_killed_run_makes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATALKER_BACKENDS__COMPILED__COMPILE", "off")
    monkeypatch.setattr(book, "WORDS_A_PAGE", 30)
    monkeypatch.setattr(book, "PAGES_A_CHAPTER", 1)
    report = tmp_path / "report.json"
    monkeypatch.setattr("sys.argv", ["book", "--pages", "2", "--json", str(report)])
    book.main()
    found = json.loads(report.read_text())
    assert (found["pages"], found["chapters"], found["files"]) == (2, 2, 4)
    assert found["files_that_differ"] == 0
    assert len(found["killed_after_s"]) == book.KILLS
    assert found["times_real_time"] == pytest.approx(found["speech_s"] / found["undisturbed_s"], rel=0.02)


def test_a_run_that_ends_before_its_kill_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ended within 60 s, before it could be killed; read more pages"):
        book.kill_after(["true"], tmp_path, 60)
    with pytest.raises(SystemExit, match="the command failed with status 1"):
        book.run(["false"], tmp_path)


def test_digests_tell_files_apart(tmp_path: Path) -> None:
    for folder, content in (("a", "x"), ("b", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.flac").write_text(content)
    assert book.digests(tmp_path / "a").keys() == book.digests(tmp_path / "b").keys()
    assert book.digests(tmp_path / "a") != book.digests(tmp_path / "b")

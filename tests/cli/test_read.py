"""``megatalker read`` and ``batch``: chapters, parts, captions, and files equal to the bit however often killed."""

import asyncio
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import soundfile

from commands import COMMAND, megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.cli.captions import captions, format_captions, write_captions
from megatalker.cli.read.book import WholeBook, read_book
from megatalker.cli.read.lines import read_lines
from megatalker.cli.read.speaking import (
    PART_CHARS,
    FileKind,
    FileSpeaker,
    SpeechFile,
    SpokenSoFar,
    file_name,
    paragraph_parts,
)
from megatalker.cli.read.store import SpeechStore
from megatalker.cli.say.formats import Format
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import InvalidRequestError
from scripted_aligner import ScriptedAligner, use
from session_stage import engine_on, fakes
from waiting import HANG_S, PROCESS_S

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def digits(sentences: int, seed: int) -> str:
    """A paragraph of digits, which `demo` says well."""
    draw = random.Random(seed)
    return " ".join(" ".join(draw.choices(DIGITS, k=6)).capitalize() + "." for _ in range(sentences))


def digit_book(path: Path, chapters: int, paragraphs: int, sentences: int = 2) -> Path:
    blocks = []
    for chapter in range(1, chapters + 1):
        blocks.append(f"Chapter {chapter}")
        blocks += [digits(sentences, 1000 * chapter + number) for number in range(paragraphs)]
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


# ---- books


def outline(book: WholeBook) -> list[tuple[str, tuple[str, ...]]]:
    return [(chapter.title, chapter.paragraphs) for chapter in book.chapters]


def test_plain_text_is_cut_at_lines_that_name_chapters(tmp_path: Path) -> None:
    book = tmp_path / "tale.txt"
    book.write_bytes(
        "\ufeffA tale\r\nby nobody.\r\n\r\nCHAPTER I. The beginning\r\n\r\nOne line\r\nand another.\r\n\r\n"
        "* * *\r\n\r\nChapter 2\r\nis no heading here.\r\n\r\nEpilogue\r\n\r\nThe end.\r\n".encode()
    )
    assert outline(read_book(book)) == [
        ("", ("A tale by nobody.",)),
        (
            "CHAPTER I. The beginning",
            ("CHAPTER I. The beginning", "One line and another.", "Chapter 2 is no heading here."),
        ),
        ("Epilogue", ("Epilogue", "The end.")),
    ]
    book.write_text("Just one text.\n\nAnd more.")
    assert outline(read_book(book)) == [("", ("Just one text.", "And more."))]


def test_markdown_is_cut_at_headings_and_loses_its_marks(tmp_path: Path) -> None:
    book = tmp_path / "tale.md"
    book.write_text(
        "Before.\n\n# One *two*\n\nA [link](http://x.y), `code`\nand **bold**.\n\n- an item\n\n```\nnot spoken\n```\n\n"
        "### Inner\n\n<b>html</b>\n\n![a picture](x.png)\n\n## Two\n\nThe end.\n"
    )
    assert outline(read_book(book)) == [
        ("", ("Before.",)),
        ("One two", ("One two", "A link, code and bold.", "an item", "Inner", "html")),
        ("Two", ("Two", "The end.")),
    ]


CONTAINER = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:title>A Tale</dc:title><dc:creator>Nobody</dc:creator></metadata>
<manifest><item id="b" href="text/two%20b.xhtml"/><item id="a" href="text/one.xhtml"/><item id="c" href="c.xhtml"/>
</manifest><spine><itemref idref="a"/><itemref idref="b"/><itemref idref="c" linear="no"/><itemref idref="x"/></spine>
</package>"""


def epub(**others: str) -> bytes:
    files = {
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": PACKAGE,
        "OPS/text/one.xhtml": "<html><head><title>no</title><style>p{}</style></head><body><nav>no</nav><h2>First "
        "<i>of</i>\nall</h2><p>It is <b>bo</b>ld &amp; good.<br/>Yes</p><p>Unclosed<p>Next</body></html>",
        "OPS/text/two b.xhtml": "<p>Second.</p><script>no</script><img src='x'/><p>3</p>",
        "OPS/c.xhtml": "<p>notes</p>",
    } | others
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # without the time of day
    return content.getvalue()


def test_an_epub_is_read_in_the_order_of_its_spine(tmp_path: Path) -> None:
    path = tmp_path / "tale.epub"
    path.write_bytes(epub())
    book = read_book(path)
    assert (book.title, book.author) == ("A Tale", "Nobody")
    assert outline(book) == [
        ("First of all", ("First of all", "It is bold & good. Yes", "Unclosed", "Next")),
        ("", ("Second.", "3")),
    ]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.pdf", b"", "expected a book: .txt, .md or .epub"),
        ("none.txt", None, "cannot be read"),
        ("x.txt", b"\xff\xfe1", "is not UTF-8 at byte 0"),
        ("x.txt", b" * * * \n\n --- ", "holds nothing to say"),
        ("x.epub", b"no archive", "not an EPUB that can be read: BadZipFile"),
        ("x.epub", epub(**{"META-INF/container.xml": "<a/>"}), "names no package file"),
        ("x.epub", epub(**{"META-INF/container.xml": "<a"}), "ParseError"),
        ("x.epub", epub(**{"OPS/text/one.xhtml": "x" * (1 << 26)}), "holds more than 64 MiB"),
        ("x.epub", epub(**{"OPS/book.opf": "<!DOCTYPE a [" + "".join(
            f'<!ENTITY e{n} "{f"&e{n - 1};" * 20 if n else "x" * 20}">' for n in range(12)
        ) + "]><a>&e11;</a>"}), "ParseError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_no_book_is_refused(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError) as refused:
        read_book(tmp_path / name)
    assert complaint in str(refused.value)


# ---- parts


def test_parts_hold_all_text_once_and_seeds_follow_the_text() -> None:
    paragraphs = (digits(80, 1), "* * *", "Short.", "x" * 2_500, digits(2, 3))
    parts = paragraph_parts(paragraphs, SpeechOptions(), 7)
    assert max(len(part.text) for part in parts) <= PART_CHARS
    said = "".join("".join(part.text.split()) for part in parts)
    assert said == "".join("".join(text.split()) for text in paragraphs if text != "* * *")
    assert [part.pause_s for part in parts if part.text == "Short."] == [0.5]
    without_first = paragraph_parts(paragraphs[2:], SpeechOptions(), 7)
    assert [part.key for part in without_first] == [part.key for part in parts[-len(without_first) :]]
    other = paragraph_parts(paragraphs, SpeechOptions(), 8)
    assert not {part.options.seed for part in other} & {part.options.seed for part in parts}


def test_names_of_files_are_safe() -> None:
    assert file_name("01 What? A/B\\C: d\n\0", ".wav") == "01 What A B C d.wav"
    assert file_name("../..", ".wav") == "speech.wav"
    assert len(file_name("字" * 500, ".wav").encode()) <= 84


def test_a_folder_belongs_to_one_command(tmp_path: Path) -> None:
    with SpeechStore(tmp_path), pytest.raises(InvalidRequestError, match="another command writes to"):
        SpeechStore(tmp_path)
    with SpeechStore(tmp_path):
        pass


# ---- settings between two runs


def speak_files(
    out: Path,
    checkpoint: Checkpoint,
    files: Sequence[SpeechFile],
    on_progress: Callable[[SpokenSoFar], None] = lambda _: None,
    **settings: Any,
) -> tuple[SpokenSoFar, str]:
    """The figures of a run, and the captions of its last file."""
    with SpeechStore(out) as store, engine_on(fakes(20), checkpoint, short_speech="believe", **settings) as engine:
        speaker = FileSpeaker(engine, store, FileKind(Format.WAV, 24_000, ".vtt"), 1, on_progress)
        so_far = asyncio.run(speaker.speak(files))
    return so_far, (out / files[-1].name).with_suffix(".vtt").read_text()


class BrokenOffError(Exception):
    """The run ends here."""


def break_off(so_far: SpokenSoFar) -> None:
    if so_far.audio_s:
        raise BrokenOffError


@pytest.mark.parametrize("finished", [True, False])
def test_another_aligner_makes_other_captions(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """Neither a finished file nor a part that was kept has times of the aligner before."""
    use(monkeypatch, ScriptedAligner())
    files = [SpeechFile("a.wav", paragraph_parts(("One here.", "Two here."), SpeechOptions(), 7), {})]
    spoken, estimated = speak_files(tmp_path / "estimated", tiny_custom_voice, files)
    out = tmp_path / "out"
    if finished:
        speak_files(out, tiny_custom_voice, files)
    else:
        with pytest.raises(BrokenOffError):
            speak_files(out, tiny_custom_voice, files, break_off)
        assert len(list((out / ".megatalker").glob("*.npz"))) == 1
    so_far, aligned = speak_files(out, tiny_custom_voice, files, aligner="scripted")
    assert so_far.audio_s == spoken.audio_s
    assert aligned != estimated
    assert aligned == speak_files(tmp_path / "aligned", tiny_custom_voice, files, aligner="scripted")[1]
    assert not list((out / ".megatalker").glob("*.npz"))
    again, same = speak_files(out, tiny_custom_voice, files, aligner="scripted")
    assert (again.audio_s, same) == (0.0, aligned)


def test_settings_and_the_words_of_a_lexicon_decide(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    files = [SpeechFile("a.wav", paragraph_parts(("One here.",), SpeechOptions(), 7), {})]
    lexicon = tmp_path / "lexicon.toml"
    lexicon.write_text('[english]\nhere = "heer"\n')
    for settings in ({}, {"language": "english"}, {"lexicon": lexicon}):
        assert speak_files(tmp_path / "out", tiny_custom_voice, files, **settings)[0].audio_s
        assert not speak_files(tmp_path / "out", tiny_custom_voice, files, **settings)[0].audio_s
    lexicon.write_text('[english]\nhere = "hear"\n')
    assert speak_files(tmp_path / "out", tiny_custom_voice, files, lexicon=lexicon)[0].audio_s


# ---- captions


def test_captions_are_sentences_of_readable_length(tmp_path: Path) -> None:
    text = "Hello there. " + "long " * 40 + "end. Last --> one & <b>"
    words = [SpokenWord(word, 0.3 * n, 0.3 * n + 0.25, " ") for n, word in enumerate(text.split())]
    shown = captions(words, 10.0)
    assert shown[0].text == "Hello there."
    assert shown[0].begins_s == pytest.approx(10.0)
    assert " ".join(one.text for one in shown) == text
    assert all(len(one.text) <= 84 and one.ends_s - one.begins_s <= 7.0 for one in shown)
    assert [one.begins_s for one in shown] == sorted(one.begins_s for one in shown)
    web = format_captions(shown, ".vtt")
    assert web.startswith("WEBVTT\n\nNOTE The times are estimates.\n\n1\n00:00:10.000 --> ")
    assert "Last --&gt; one &amp; &lt;b>" in web
    assert format_captions(shown, ".srt").startswith("1\n00:00:10,000 --> 00:00:10,550\nHello there.\n")
    with pytest.raises(InvalidRequestError, match=r"captions are written as \.srt or \.vtt"):
        write_captions(tmp_path / "x.txt", shown)


# ---- batches


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has 0 requests"),
        ('{"input": "Hi."}\n{"input": 3}', "line 2 of x.jsonl: input"),
        ('{"inptu": "Hi."}', "line 1 of x.jsonl: "),
        ("[1]", "line 1 of x.jsonl"),
        ("{", "line 1 of x.jsonl"),
        ('{"input": "..."}', "has no letter or digit"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InvalidRequestError) as refused:
        read_lines(tmp_path / "x.jsonl")
    assert complaint in str(refused.value)


@pytest.mark.slow
def test_a_batch_makes_a_file_for_each_line_as_say_does(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    lines = [
        {"input": "Hello there.", "id": "hello", "seed": 3, "voice": "serena"},
        {"input": "Good morning.", "id": "mixed", "seed": 4, "voice": "serena:0.5+ryan:0.5"},
        {"input": "Good night."},
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = megatalker("batch", "all.jsonl", "--checkpoint", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "all").glob("*.wav")) == ["3.wav", "hello.wav", "mixed.wav"]
    said = ["--checkpoint", folder, "--seed", "3", "--voice", "serena", "--no-play"]
    assert megatalker("say", "Hello there.", *said, "-o", "alone.wav", cwd=tmp_path).returncode == 0
    assert (tmp_path / "all" / "hello.wav").read_bytes() == (tmp_path / "alone.wav").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*.wav")}
    again = megatalker("batch", "all.jsonl", "--checkpoint", folder, cwd=tmp_path)
    assert "3 of 3 finished, 0 s of speech" in again.stderr.replace("\n", " ")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    lines[1]["id"] = "HELLO"
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    refused = megatalker("batch", "all.jsonl", "--checkpoint", folder, cwd=tmp_path)
    assert "requests 1 and 2 make the same file" in one_line(refused.stderr)


# ---- a book, killed


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def long_parts(folder: Path) -> set[Path]:
    """Return the kept parts of two seconds or more: headings are shorter than what the command's report shows."""
    found = set()
    for path in folder.glob("*.npz"):
        with contextlib.suppress(FileNotFoundError):  # its chapter has been finished
            if path.stat().st_size > 2 * 2 * SAMPLE_RATE:
                found.add(path)
    return found


@pytest.mark.slow
def test_a_book_that_is_killed_twice_becomes_the_same_files(demo: Checkpoint, tmp_path: Path) -> None:
    book = digit_book(tmp_path / "book.txt", chapters=2, paragraphs=3)
    options = ["--format", "flac", "--captions", "vtt", "--voice", "robin:0.6+mina:0.4", "--streams", "3"]
    whole = megatalker("read", str(book), *options, "-o", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    expected = files_of(tmp_path / "whole")
    assert list(expected) == [f"0{n} Chapter {n}.{ending}" for n in (1, 2) for ending in ("flac", "vtt")]
    with soundfile.SoundFile(tmp_path / "whole" / "02 Chapter 2.flac") as file:
        assert (file.title, file.album, file.tracknumber) == ("Chapter 2", "book", "2")
    kept = tmp_path / "killed" / ".megatalker"
    for number, end in enumerate((signal.SIGKILL, signal.SIGINT)):
        running = subprocess.Popen(
            [*COMMAND, "read", str(book), *options, "-o", "killed"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        before = long_parts(kept)  # a finished chapter deletes its parts: their number tells nothing
        deadline = time.monotonic() + PROCESS_S
        while not long_parts(kept) - before and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(running.pid, end)
        _, told = running.communicate(timeout=HANG_S)
        assert running.returncode == (-signal.SIGKILL if number == 0 else 130), told
        if end is signal.SIGINT:
            assert "interrupted; " in told
            assert "The same command goes on with the rest" in told.replace("\n", " ")
    assert list(kept.glob("*.npz")) or (kept / "finished.json").exists(), "something had been spoken"
    last = megatalker("read", str(book), *options, "-o", "killed", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert files_of(tmp_path / "killed") == expected
    assert not list(kept.glob("*.npz")), "nothing is left over"

    def seconds(done: str) -> int:
        return int(done.split(" s of speech")[-2].split()[-1])

    assert seconds(last.stderr) < seconds(whole.stderr), "what was kept is not spoken again"

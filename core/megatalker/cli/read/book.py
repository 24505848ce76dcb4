"""Books as chapters of paragraphs: plain text, Markdown, and EPUB (:mod:`megatalker.cli.read.epub`)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatalker.errors import InvalidRequestError
from megatalker.settings.files import read_regular_file

MOST_BYTES = 1 << 26
"""The largest book, 64 MiB; "War and Peace" has 3 MB of text."""
_HEADING = re.compile(
    r"(chapter|part|book|kapitel|teil|chapitre|cap[ií]tulo|capitolo|глава)\s+([0-9]+|[ivxlcdm]+|[\w-]+)\b.{0,80}"
    r"|(prologue|epilogue|preface|introduction|foreword|afterword|vorwort|nachwort)\.?"
    r"|第[0-9〇零一二三四五六七八九十百千]+[章回节].{0,80}",  # noqa: RUF001 - numerals are meant
    re.IGNORECASE,
)
"""A line of a plain text that begins a chapter, where it stands alone between blank lines."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a book that becomes a file."""

    title: str
    """The title in the book; empty where it has none. The paragraphs hold it again where it is to be spoken."""
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WholeBook:
    """A book as it is to be spoken. Each chapter has a paragraph with a letter or digit."""

    title: str
    author: str
    chapters: tuple[Chapter, ...]


def read_book(path: Path) -> WholeBook:
    """Read a book from ``.txt``, ``.md`` or ``.epub``.

    Raises:
        InvalidRequestError: there is no such file, it is none of these, is damaged, or holds nothing to say.
    """
    ending = path.suffix.lower()
    if ending not in (".txt", ".text", ".md", ".markdown", ".epub"):
        raise InvalidRequestError(f"{str(path)!r} ends in {ending!r}, expected a book: .txt, .md or .epub")
    try:
        content = read_regular_file(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(f"the book {str(path)!r} cannot be read: {why}") from error
    if ending == ".epub":
        from megatalker.cli.read.epub import read_epub

        book = read_epub(content, path.stem)
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"the book {str(path)!r} is not UTF-8 at byte {error.start}; convert it, for example with iconv"
            ) from error
        chapters = _markdown(text) if ending in (".md", ".markdown") else _plain(text)
        book = WholeBook(path.stem, "", with_speech(chapters))
    if not book.chapters:
        raise InvalidRequestError(f"the book {str(path)!r} holds nothing to say; expected text with letters or digits")
    return book


def with_speech(chapters: Sequence[Chapter]) -> tuple[Chapter, ...]:
    """Return the chapters without paragraphs that have no letter or digit, and without chapters that have no other."""
    kept = []
    for chapter in chapters:
        spoken = tuple(text for text in chapter.paragraphs if any(map(str.isalnum, text)))
        if spoken:
            kept.append(Chapter(chapter.title, spoken))
    return tuple(kept)


def _plain(text: str) -> list[Chapter]:
    """Split at lines such as "Chapter 3" that stand alone."""
    chapters, title, paragraphs = [], "", list[str]()
    for block in _blocks(text):
        if "\n" not in block and _HEADING.fullmatch(block):
            chapters.append(Chapter(title, tuple(paragraphs)))
            title, paragraphs = block, []
        paragraphs.append(" ".join(block.split()))
    return [*chapters, Chapter(title, tuple(paragraphs))]


def _blocks(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield "\n".join(lines)
            lines = []


def _markdown(text: str) -> list[Chapter]:
    """Split at headings of the first two levels. Code, tables' rules, images and HTML are not spoken."""
    from markdown_it import MarkdownIt

    chapters, title, paragraphs, level = [], "", list[str](), 0
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "heading_open":
            level = int(token.tag[1])
        elif token.type == "inline":
            words = " ".join(_inline(token.children or ()).split())
            if level in (1, 2):
                chapters.append(Chapter(title, tuple(paragraphs)))
                title, paragraphs = words, []
            paragraphs.append(words)
            level = 0
    return [*chapters, Chapter(title, tuple(paragraphs))]


def _inline(children: Sequence[object]) -> str:
    spoken = []
    for child in children:
        kind = getattr(child, "type", "")
        if kind in ("text", "code_inline"):
            spoken.append(str(getattr(child, "content", "")))
        elif kind in ("softbreak", "hardbreak"):
            spoken.append(" ")
    return "".join(spoken)

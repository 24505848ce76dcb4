"""EPUB, versions 2 and 3: a ZIP archive of XHTML, whose package file says what is read in which order.

Read with Python's own parsers: of XML for the package, whose entities are bounded by Expat, and of HTML for the texts,
which takes what books really contain. Nothing outside the archive is opened.
"""

import io
import posixpath
import zipfile
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from megatalker.cli.read.book import MOST_BYTES, Chapter, WholeBook, with_speech
from megatalker.errors import InvalidRequestError

MOST_FILES = 4_000
"""Texts of one book."""
_BLOCKS = frozenset(
    (
        *("p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "dt", "dd", "blockquote", "section", "article"),
        *("tr", "td", "th", "pre", "figcaption", "header", "footer", "body"),
    )
)
_SILENT = frozenset(("script", "style", "head", "nav", "svg", "math", "rt", "rp", "audio", "video"))
_VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "area", "base", "col", "embed", "source", "wbr"))
_HEADINGS = ("h1", "h2", "h3")


def read_epub(content: bytes, name: str) -> WholeBook:
    """Return the book in the content of an EPUB file.

    Args:
        content: of the file.
        name: its title where it tells none.

    Raises:
        InvalidRequestError: it is no EPUB, is damaged, encrypted or too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _EpubArchive(archive).book(name)
    except InvalidRequestError:
        raise
    except (zipfile.BadZipFile, ET.ParseError, KeyError, EOFError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(f"this is not an EPUB that can be read: {type(error).__name__}: {error}") from error


class _EpubArchive:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive, self._left = archive, MOST_BYTES

    def book(self, name: str) -> WholeBook:
        container = ET.fromstring(self._read("META-INF/container.xml"))
        place = next((one.get("full-path") for one in container.iter() if _kind(one) == "rootfile"), None)
        if place is None:
            raise InvalidRequestError("this is not an EPUB that can be read: its container names no package file")
        package = ET.fromstring(self._read(place))
        items = {one.get("id"): one.get("href", "") for one in package.iter() if _kind(one) == "item"}
        order = [one.get("idref") for one in package.iter() if _kind(one) == "itemref" and one.get("linear") != "no"]
        if len(order) > MOST_FILES:
            raise InvalidRequestError(f"this EPUB has {len(order):,} texts, expected at most {MOST_FILES:,}")
        folder = posixpath.dirname(place)
        chapters: list[Chapter] = []
        for place in (posixpath.normpath(posixpath.join(folder, unquote(items.get(one, "")))) for one in order):
            if place in self._archive.NameToInfo:
                chapters.append(_chapter(self._read(place).decode("utf-8-sig", "replace")))
        return WholeBook(_meta(package, "title") or name, _meta(package, "creator"), with_speech(chapters))

    def _read(self, place: str) -> bytes:
        """Read a file of the archive; all together are bounded, whatever sizes the archive claims."""
        with self._archive.open(place) as file:
            content = file.read(self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise InvalidRequestError(f"this EPUB holds more than {MOST_BYTES >> 20} MiB of text")
        return content


def _kind(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _meta(package: ET.Element, name: str) -> str:
    found = (one.text for one in package.iter() if _kind(one) == name and one.text)
    return " ".join(next(found, "").split())


def _chapter(text: str) -> Chapter:
    paragraphs = _Paragraphs()
    paragraphs.feed(text)
    paragraphs.close()
    paragraphs.end_block()
    return Chapter(paragraphs.title, tuple(paragraphs.found))


class _Paragraphs(HTMLParser):
    """Collects the text between tags that begin or end a block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.title = ""
        self._text: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _SILENT:
            self._silent += 1
        elif tag in _BLOCKS:
            self.end_block()
        elif tag in _VOID:
            self._text.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _SILENT:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag in _BLOCKS:
            heading = self.end_block()
            if tag in _HEADINGS and not self.title:
                self.title = heading

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._text.append(data)

    def end_block(self) -> str:
        text = " ".join("".join(self._text).split())
        self._text = []
        if text:
            self.found.append(text)
        return text

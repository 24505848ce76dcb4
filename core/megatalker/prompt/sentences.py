"""Cuts long text into segments that end where a speaker would pause."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate

import sentencex

from megatalker.errors import InvalidRequestError

__all__ = ["split_sentences"]

_CLAUSE_END = re.compile(r"[,;:—–…](?=\s)|[，、；：。！？…]")  # noqa: RUF001 - CJK punctuation is meant
_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_ZERO_WIDTH_JOINER = "\u200d"
_WINDOW_CHARS = 1_000
"""Text that the sentence splitter is given at once, at least: its time grows with the square of what it gets (20,000
characters of one-letter Chinese sentences: 0.5 s at once, 0.03 s in windows of this size)."""
_SURE_SHARE = 0.75
"""Sentences in this share of a window are found as in the whole text, unless a quotation is longer than the rest."""
_MOST_MARKS = 32
"""Marks and joiners that are kept together with the character they belong to."""


def split_sentences(text: str, max_chars: int) -> list[str]:
    """Segments of at most ``max_chars`` characters: as many whole sentences as fit each.

    A longer sentence is cut at the last clause mark that fits, else at the last space, else between characters. Nothing
    but whitespace around segments is lost; segments are stripped and never empty.

    Raises:
        InvalidRequestError: ``max_chars`` is below 1.
    """
    if max_chars < 1:
        raise InvalidRequestError(f"max_chars is {max_chars}, expected at least 1")
    segments: list[str] = []
    segment = ""
    for sentence in _sentences(text, max(_WINDOW_CHARS, 2 * max_chars)):
        for part in _parts(sentence, max_chars):
            if segment and len((segment + part).strip()) > max_chars:
                segments.append(segment.strip())
                segment = ""
            segment += part
    segments.append(segment.strip())
    return [segment for segment in segments if segment]


def _sentences(text: str, window_chars: int) -> Iterator[str]:
    """Sentences with the white space around them; one that is longer than a window comes in several parts."""
    begin = 0
    while begin < len(text):
        window = _window(text, begin, window_chars)
        found = list(sentencex.segment("en", window))
        if "".join(found) != window:
            found = [window]
        if begin + len(window) < len(text):  # what follows may show that an end near the window's is none
            ends = accumulate(map(len, found))
            sure = sum(end <= len(window) * _SURE_SHARE for end in ends)
            found = found[: sure or len(found) - 1] or [window[: _cut(window, len(window) - 1)]]
        yield from found
        begin += sum(map(len, found))


def _window(text: str, begin: int, chars: int) -> str:
    """The next ``chars`` characters; fewer where a quotation would be cut, which changes what is found before it."""
    window = text[begin : begin + chars]
    if begin + chars < len(text) and window.count('"') % 2 and (quote := window.rfind('"')) >= chars // 2:
        window = window[:quote]
    return window


def _parts(sentence: str, max_chars: int) -> Iterator[str]:
    while len(sentence.strip()) > max_chars:
        blanks = len(sentence) - len(sentence.lstrip())
        cut = blanks + _cut(sentence[blanks:], max_chars)
        yield sentence[:cut]
        sentence = sentence[cut:]
    yield sentence


def _cut(sentence: str, max_chars: int) -> int:
    for pattern in (_CLAUSE_END, _WORD_END):
        ends = [match.end() for match in pattern.finditer(sentence, 0, max_chars + 2)]
        fitting = [end for end in ends if 0 < end <= max_chars]
        if fitting:
            return fitting[-1]
    for cut in range(max_chars, max(1, max_chars - _MOST_MARKS), -1):
        if not _belong_together(sentence[cut - 1], sentence[cut]):
            return cut
    return max_chars


def _belong_together(left: str, right: str) -> bool:
    return unicodedata.category(right)[0] == "M" or _ZERO_WIDTH_JOINER in (left, right)

"""Cuts text into the words that Pipecat reports as spoken, and guesses how long each takes to say."""

import re
import unicodedata
from dataclasses import dataclass

from megatalker.prompt.text import has_speech

__all__ = ["Piece", "cut"]

_TOKEN = re.compile(r"\S+")
_DIGIT_UNITS = 4.0
"""A digit is said as a word."""
_SYLLABLE_UNITS = 3.5
"""A character of a script that writes syllables or words with one character each."""
_PAUSE_UNITS = {",": 3.0, ";": 4.0, ":": 4.0, ".": 6.0, "!": 6.0, "?": 6.0, "。": 6.0}
_WIDE = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO")
"""Scripts that put no spaces between words, by the beginning of their characters' Unicode names."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A word as it stands in the text, punctuation included."""

    text: str
    units: float
    """How long it takes to say, in letters."""
    joined: bool
    """It stands in a run without spaces: nothing goes between it and the piece after it."""
    end: int
    """Where it ends in the text it was cut from."""


def cut(text: str, *, joined: bool = False) -> list[Piece]:
    """Words of a text, in order; whitespace between them is left out.

    ``joined``: the text begins within a run whose words are not separated by spaces.

    Punctuation that stands alone belongs to the word after it, and is left out at the end. Where words are not
    separated by spaces (Chinese, Japanese) each character is a piece, together with the punctuation that follows it.
    """
    pieces: list[Piece] = []
    start = None
    for match in _TOKEN.finditer(text):
        start = match.start() if start is None else start
        if not has_speech(match.group()):
            continue
        run = text[start : match.end()]
        in_run = (joined and start == 0) or any(map(_is_wide, match.group()))
        for part in _parts(run) if in_run else [run]:
            start += len(part)
            pieces.append(Piece(part, _units(part), in_run, end=start))
        start = None
    return pieces


def _parts(run: str) -> list[str]:
    parts = [""]
    for character in run:
        begins = character.isalnum() and any(map(str.isalnum, parts[-1]))
        if begins and (_is_wide(character) or not parts[-1][-1].isascii()):
            parts.append("")
        parts[-1] += character
    return parts


def _is_wide(character: str) -> bool:
    return character.isalpha() and unicodedata.name(character, "").startswith(_WIDE)


def _units(piece: str) -> float:
    units = 1.0  # the gap to the next word
    for character in piece:
        if character.isdigit():
            units += _DIGIT_UNITS
        elif _is_wide(character) or "HANGUL" in unicodedata.name(character, ""):
            units += _SYLLABLE_UNITS
        elif character.isalpha():
            units += 1.0
    return units + _PAUSE_UNITS.get(unicodedata.normalize("NFKC", piece[-1])[0], 0.0)

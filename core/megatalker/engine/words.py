"""Cuts text into the words that are reported as spoken, and guesses how long each takes to say."""

import unicodedata
from dataclasses import dataclass

__all__ = ["Word", "WordCutter", "cut", "letters"]

_DIGIT_UNITS = 4.0
"""A digit is said as a word."""
_SYLLABLE_UNITS = 3.5
"""A character of a script that writes syllables or words with one character each."""
_PAUSE_UNITS = {",": 3.0, ";": 4.0, ":": 4.0, ".": 6.0, "!": 6.0, "?": 6.0, "。": 6.0}
_WIDE = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO")
"""Scripts that put no spaces between words, by the beginning of their characters' Unicode names."""


def letters(text: str) -> int:
    """Letters and digits of a text: what is left of it where everything else was cleaned away."""
    return sum(map(str.isalnum, text))


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it stands in the text, punctuation included."""

    text: str
    before: str
    """White space between the previous word and this one."""
    units: float
    """How long it takes to say, in letters."""
    joined: bool
    """It stands in a run without spaces: nothing goes between it and the word after it."""
    end: int
    """Where it ends in all of the text."""


class WordCutter:
    """Finds words in text that comes in pieces, cut anywhere. The work for a character does not depend on the text.

    Punctuation that stands alone belongs to the word after it, and is left out at the end. Where words are not
    separated by spaces (Chinese, Japanese) each character is a word, together with the punctuation that follows it.
    """

    def __init__(self) -> None:
        self._before: list[str] = []
        self._word: list[str] = []
        self._speakable = False
        """There is a letter or digit in the present run without spaces, and in ``_word``."""
        self._wide = False
        """The present run without spaces is of a script that has none."""
        self._read = 0

    def feed(self, text: str) -> list[Word]:
        """Words that are complete with this piece of the text."""
        found = []
        for character in text:
            if character.isspace():
                if self._speakable:
                    found.append(self._take())
                self._wide = False
                (self._word if self._word else self._before).append(character)
            else:
                wide = _is_wide(character)
                self._wide = self._wide or wide
                begins = self._speakable and character.isalnum()
                if begins and self._wide and (wide or not self._word[-1].isascii()):
                    found.append(self._take())
                self._word.append(character)
                self._speakable = self._speakable or character.isalnum()
            self._read += 1
        return found

    def finish(self) -> list[Word]:
        """The last word, where there is one: no text follows."""
        return [self._take()] if self._speakable else []

    def _take(self) -> Word:
        text, before = "".join(self._word), "".join(self._before)
        self._word, self._before, self._speakable = [], [], False
        return Word(text, before, _units(text), self._wide, self._read)


def cut(text: str) -> list[Word]:
    """Words of a text that is complete, in order."""
    cutter = WordCutter()
    return cutter.feed(text) + cutter.finish()


def _is_wide(character: str) -> bool:
    return not character.isascii() and character.isalpha() and unicodedata.name(character, "").startswith(_WIDE)


def _units(word: str) -> float:
    units = 1.0  # the gap to the next word
    for character in word:
        if character.isdigit():
            units += _DIGIT_UNITS
        elif _is_wide(character) or (not character.isascii() and "HANGUL" in unicodedata.name(character, "")):
            units += _SYLLABLE_UNITS
        elif character.isalpha():
            units += 1.0
    return units + _PAUSE_UNITS.get(unicodedata.normalize("NFKC", word[-1])[0], 0.0)

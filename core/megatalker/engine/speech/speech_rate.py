"""How much text a number of frames can hold: tells speech that ended before its text from speech that is only quick.

Measured with the three voices of the checkpoint ``demo`` and both layouts, 38 texts of 1 to 91 letters, one stream each
(:func:`letters`, with :data:`PAUSE_LETTERS` between sentences):

* complete speech has at most 1.16 letters a frame;
* English texts of 20 letters and more have at least 0.79, and 0.86 in the median of all such texts;
* three paragraphs of which it said one, in 14 frames, have 2.8.
"""

import re
import unicodedata

from megatalker.checkpoint.config import FRAME_SECONDS

MOST_LETTERS_A_FRAME = 25 * FRAME_SECONDS  # not tuned: a fact of speech
"""25 letters a second are about the fastest that people speak, and 1.7 times what was measured: no quick but complete
speech is taken for short."""
USUAL_LETTERS_A_FRAME = 0.8  # not tuned: a fact of speech
"""The slowest rate that was measured for English texts: what is taken for spoken was spoken."""
PAUSE_LETTERS = 6.0  # not tuned: a fact of speech
"""A pause between two sentences lasts at least as long as this many letters at the fastest rate: 0.24 s."""
_DIGIT_LETTERS = 3.0  # not tuned: a fact of speech
"""The shortest names of digits ("one", "two", "six"); 0 counts as one letter, since "1000000" is two words."""
_IDEOGRAPH_LETTERS = 3.0  # not tuned: a fact of speech
"""At most eight or so syllables are spoken in a second, one or more for each ideograph."""
_SYLLABLE_LETTERS = 2.0  # not tuned: a fact of speech
"""The same for scripts in which each character writes one short syllable."""
_IDEOGRAPHS = ("CJK",)
_SYLLABLES = ("HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")
"""Scripts, by the beginning of their characters' Unicode names."""
_PAUSE = re.compile(r"(?<=\w{3})[.!?…]\s+|[。！？](?=[^\s。！？])|\n\s*")  # noqa: RUF001 - full-width marks are meant


def letters(text: str) -> float:
    """Count what there is to say, in letters of an alphabet. A repeated letter counts once: "Nooo" is no longer than
    "No".
    """
    total, before = 0.0, ""
    for character in unicodedata.normalize("NFC", text):
        count = _letters_in(character)
        if count != 1.0 or character != before:
            total += count
        before = character
    return total


def is_short(text: str, frames: int) -> bool:
    """Whether ``frames`` cannot hold all of ``text``, however quickly it is spoken."""
    pauses = sum(1 for _ in _PAUSE.finditer(text.strip()))
    return letters(text) + PAUSE_LETTERS * pauses > MOST_LETTERS_A_FRAME * frames


def spoken_chars(text: str, frames: int) -> int:
    """Estimate how many characters of ``text`` are spoken after ``frames``, at the usual rate."""
    whole = letters(text)
    return round(len(text) * min(1.0, USUAL_LETTERS_A_FRAME * frames / whole)) if whole else len(text)


def resume_at(text: str, spoken: int) -> int:
    """Return the index in ``text`` at which speech goes on when its first ``spoken`` characters were said: the start of
    the sentence that was being spoken, or of the next one where that is the first, or the end. Above 0 unless there is
    no text.
    """
    if spoken >= len(text):
        return len(text)
    starts = [match.end() for match in _PAUSE.finditer(text)]
    return max((start for start in starts if start <= spoken), default=min(starts, default=len(text)))


def _letters_in(character: str) -> float:
    if character.isdigit():
        return 1.0 if unicodedata.digit(character) == 0 else _DIGIT_LETTERS
    if not character.isalpha():
        return 0.0
    if character.isascii():
        return 1.0
    name = unicodedata.name(character, "")
    if name.startswith(_IDEOGRAPHS):
        return _IDEOGRAPH_LETTERS
    return _SYLLABLE_LETTERS if name.startswith(_SYLLABLES) else 1.0

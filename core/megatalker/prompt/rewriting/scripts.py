"""Scripts of characters, as far as words and their ends depend on them."""

import unicodedata
from functools import lru_cache
from typing import Literal

Script = Literal["latin", "cyrillic", "han", "kana", "hangul", ""]
"""``""``: another script, or no letter."""

_NAMES: tuple[tuple[str, Script], ...] = (
    ("LATIN", "latin"),
    ("CYRILLIC", "cyrillic"),
    ("CJK", "han"),
    ("HIRAGANA", "kana"),
    ("KATAKANA", "kana"),
    ("HANGUL", "hangul"),
)


@lru_cache(maxsize=4096)
def script_of(character: str) -> Script:
    """Return the script of a letter."""
    if not character.isalpha():
        return "kana" if character == "ー" else ""
    if character.isascii():
        return "latin"
    name = unicodedata.name(character, "")
    return next((script for start, script in _NAMES if name.startswith(start)), "")


def is_wide(character: str) -> bool:
    """Whether words of its script follow each other, or their particles them, without a space: Chinese, Japanese and
    Korean.
    """
    return not character.isascii() and script_of(character) in ("han", "kana", "hangul")


@lru_cache(maxsize=4096)
def in_word(character: str) -> bool:
    """Whether it belongs to the word around it: a letter, an accent, a digit or a low line."""
    return character == "_" or character.isalnum() or unicodedata.category(character)[0] == "M"

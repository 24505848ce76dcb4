"""Replacement of single characters in text that is spoken: by themselves, a plain letter, a space, or nothing.

Letters and digits in disguise (mathematical, full-width, circled, ligatures) become plain ones, as NFKC has them.
Everything that is usual in a language stays as it is: below U+2000 a compatibility decomposition marks a usual letter
(Thai sara am, Armenian ew), and so do the Korean jamo of chats. Punctuation is never folded: the model was trained on
full-width commas.
"""

import unicodedata

__all__ = ["CHARACTERS"]

ZWNJ, ZWJ = "\u200c", "\u200d"
"""Joiners stay here; whether one is needed depends on its neighbours (:mod:`megatalker.prompt.cleaning`)."""

_SILENT = frozenset(
    code
    for first, last in (
        *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065), (0x20DD, 0x20E0)),
        *((0x20E2, 0x20E4), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8)),
    )
    for code in range(first, last + 1)
)
"""Code points without a sound that are no format characters: Unicode's Default_Ignorable_Code_Point, and marks that
draw a frame around a letter. Those of plane 14 come on top."""
_IDEOGRAPHS = range(0x20000, 0x40000)
"""Planes in which everything is an ideograph, also what is newer than this Python."""
_PLANE_14_SILENT = range(0xE0000, 0xE1000)
_EMOJI = range(0x1F000, 0x1FB00)
"""Range whose unassigned code points are emoji of a newer Unicode than Python's."""
_BLANKS = "\ufffc\ufffd\u2800"
"""Stand for something that is not there."""
_USUAL = "\u2116"
"""The numero sign, whose letters would be read as a word."""
_KOREAN_JAMO = range(0x3131, 0x318F)
_NUMBERS_IN_CIRCLES = frozenset(
    (*range(0x2460, 0x2474), *range(0x24EA, 0x2500), *range(0x2776, 0x2794), *range(0x3251, 0x3260))
).union(range(0x32B1, 0x32C0))
_WHITE_ON_BLACK = frozenset((*range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)))
"""Two alphabets that have no decomposition, the second 32 places after the first."""
_ALONGSIDE = ".,()"


class _Characters(dict[int, int | str]):
    """Table for ``str.translate``. It is filled as characters are met, which are at most two planes of Unicode."""

    def __missing__(self, code: int) -> int | str:
        if code >= _IDEOGRAPHS.start:
            return _in_upper_planes(code)
        found = _replacement(chr(code))
        value = self[code] = code if found == chr(code) else found
        return value


CHARACTERS = _Characters()
"""``text.translate(CHARACTERS)`` has what stands for each character. White space and joiners stay."""


def _in_upper_planes(code: int) -> int | str:
    if code in _IDEOGRAPHS and code & 0xFFFE != 0xFFFE:
        return code
    return "" if code in _PLANE_14_SILENT else " "


def _replacement(character: str) -> str:
    if character.isspace() or character in (ZWNJ, ZWJ):
        return character
    category = unicodedata.category(character)
    if category == "Cf" or ord(character) in _SILENT:
        return ""
    if category[0] == "C" or character in _BLANKS:
        return character if ord(character) in _EMOJI else " "
    return _folded(character, category)


def _folded(character: str, category: str) -> str:
    code = ord(character)
    if code in _NUMBERS_IN_CIRCLES:
        return f" {unicodedata.numeric(character):g} "
    if code in _WHITE_ON_BLACK:
        return chr(ord("A") + (code - min(_WHITE_ON_BLACK)) % 32)
    tag, _, single = unicodedata.decomposition(character).partition(" ")
    if code < 0x100 or not tag.startswith("<") or character in _USUAL:
        return character
    if tag in ("<wide>", "<narrow>"):  # one step: the next would take Korean letters apart
        return chr(int(single, 16)) if category[0] in "LN" else character
    if tag == "<compat>" and (code < 0x2000 or code in _KOREAN_JAMO):
        return character
    if tag == "<super>" and category[0] != "L":  # 10² is not 102, and a trade mark is not said
        return character
    folded = unicodedata.normalize("NFKC", character)
    bare = folded.strip("()")
    if bare.isascii() and bare.isalpha():
        return bare
    usual = all(sign in _ALONGSIDE or unicodedata.category(sign)[0] in "LMN" for sign in folded)
    return folded if usual and bare.isprintable() and any(map(str.isalnum, folded)) else character

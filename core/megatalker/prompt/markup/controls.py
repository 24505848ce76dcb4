"""Controls in clean text: what markup asks for between words, on the way to the segmenter.

A control begins and ends with a code point that is no character and that cleaning removes from what callers send, so
that no text can forge one.
"""

import re

from megatalker.prompt.cleaning import PARAGRAPH_END
from megatalker.prompt.markup.parts import Part, PartKind

__all__ = ["ControlReader", "encode_control", "without_controls"]

_BEGIN, _END = "\ufdd0", "\ufdd1"
_KINDS: dict[str, PartKind] = {"p": "pause", "m": "mark", "v": "voice", "r": "prosody"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_CONTROL = re.compile(f"{_BEGIN}([^{_END}]*){_END}")


def encode_control(part: Part) -> str:
    """Return a part that is no text as it stands in clean text."""
    return PARAGRAPH_END if part.kind == "end" else f"{_BEGIN}{_LETTERS[part.kind]}{part.value}{_END}"


def without_controls(text: str) -> str:
    """Return what is spoken of a text with whole controls: each ends a paragraph."""
    return _CONTROL.sub(PARAGRAPH_END, text) if _BEGIN in text else text


class ControlReader:
    """Finds controls in text that arrives in pieces, cut anywhere."""

    def __init__(self) -> None:
        self._held = ""
        """The beginning of a control."""

    def read(self, text: str) -> list[Part]:
        """Return the text and the controls in this piece, in order; a paragraph's end is one, too."""
        if not self._held and _BEGIN not in text:
            return _paragraphs(text)
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        place = 0
        for match in _CONTROL.finditer(text):
            parts += _paragraphs(text[place : match.start()])
            place = match.end()
            parts.append(Part(_KINDS[match[1][0]], match[1][1:]))
        begins = text.find(_BEGIN, place)
        if begins >= 0:
            self._held = text[begins:]
        return parts + _paragraphs(text[place : begins if begins >= 0 else len(text)])


def _paragraphs(text: str) -> list[Part]:
    if PARAGRAPH_END not in text:
        return [Part("text", text)] if text else []
    parts: list[Part] = []
    for index, paragraph in enumerate(text.split(PARAGRAPH_END)):
        if index:
            parts.append(Part("end"))
        if paragraph:
            parts.append(Part("text", paragraph))
    return parts

"""The parts of a text in markup, and the limits of what it may ask for."""

import re
from fractions import Fraction
from typing import Literal, NamedTuple, Protocol

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import MarkupError

__all__ = [
    "LONGEST_NAME",
    "LONGEST_PAUSE_S",
    "MOST_PAUSES_S",
    "NAME",
    "NAME_RULE",
    "MarkupReader",
    "Part",
    "PartKind",
    "PauseBudget",
    "TextPlace",
    "checked_name",
]

LONGEST_PAUSE_S = 10
"""Seconds of silence that may stand between two words, all pauses there together."""
MOST_PAUSES_S = 600
"""Seconds of all pauses of a text."""
LONGEST_NAME = 64
"""Characters of the name of a mark or voice."""

PartKind = Literal["text", "literal", "end", "pause", "mark", "voice", "prosody"]
"""* ``text``: spoken, after the lexicon and normalisation.
* ``literal``: spoken as it stands.
* ``end``: a paragraph or sentence ends.
* ``pause``: samples of silence.
* ``mark``: a name that is told when speech gets there.
* ``voice``: the voice that follows, or nothing for the request's own.
* ``prosody``: how the text that follows is spoken (:meth:`Prosody.encode
  <megatalker.prompt.markup.prosody.Prosody.encode>`)."""


class Part(NamedTuple):
    """A part of a text in markup."""

    kind: PartKind
    value: str = ""


class TextPlace(NamedTuple):
    """A place in a text in markup, both counted from 1."""

    line: int
    column: int

    def after(self, text: str) -> "TextPlace":
        """Return the place where this text ends, which begins here."""
        breaks = text.count("\n")
        return TextPlace(self.line + breaks, len(text) - text.rfind("\n") if breaks else self.column + len(text))

    def error(self, message: str) -> MarkupError:
        """Return the error that something is wrong here."""
        return MarkupError(f"line {self.line}, column {self.column}: {message}")


class MarkupReader(Protocol):
    """Reads one text in markup, in pieces. What all :meth:`feed` calls and :meth:`finish` return does not depend on how
    the text was cut, except that a ``text`` may come in several.
    """

    def feed(self, text: str) -> list[Part]:
        """Return the parts that are certain after this piece.

        Raises:
            MarkupError: it is not well formed here, or asks for what is not there. The reader is of no use then.
        """

    def finish(self) -> list[Part]:
        """Return what was held back, since no text follows; raises as :meth:`feed`."""


_DURATION = re.compile(r"\+?(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<unit>ms|s)", re.A)


class PauseBudget:
    """The pauses of one text, which are bounded."""

    def __init__(self) -> None:
        self._here, self._all = Fraction(), Fraction()

    def spoken(self) -> None:
        """Something is said: the next pause stands at another place."""
        self._here = Fraction()

    def take(self, written: str, place: TextPlace) -> Part:
        """Return a pause of the length that is written, such as ``400ms`` or ``1.5s``.

        Raises:
            MarkupError: it is no length, or too long, by itself or with the others.
        """
        match = _DURATION.fullmatch(written.strip())
        if match is None:
            raise place.error(f"the pause is {written!r:.40}, expected a length such as 400ms or 1.5s")
        seconds = Fraction(match["number"].rstrip(".")) / (1000 if match["unit"] == "ms" else 1)
        self._here += seconds
        self._all += seconds
        if self._here > LONGEST_PAUSE_S:
            raise place.error(
                f"a pause of {float(self._here):g} s was asked for, expected at most {LONGEST_PAUSE_S} s between two "
                "words; make it shorter"
            )
        if self._all > MOST_PAUSES_S:
            raise place.error(f"the pauses of a text last more than {MOST_PAUSES_S} s in all; send it in parts")
        return Part("pause", str(round(seconds * SAMPLE_RATE)))


NAME = re.compile(rf"[^\W_][\w.-]{{0,{LONGEST_NAME - 1}}}")
"""Names of marks and voices."""
NAME_RULE = f"a letter or digit and then at most {LONGEST_NAME - 1} letters, digits, hyphens, low lines and full stops"


def checked_name(what: str, name: str, place: TextPlace) -> str:
    """Return the name of a mark or voice.

    Raises:
        MarkupError: it is no name.
    """
    if NAME.fullmatch(name) is None:
        raise place.error(f"{what} is named {name!r:.80}, expected {NAME_RULE}")
    return name

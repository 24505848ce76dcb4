"""Rewrites one text that arrives in pieces: words of lexicons are respelled, the rest is normalised."""

from collections.abc import Sequence

from megatalker.prompt.rewriting.grouping import Grouper
from megatalker.prompt.rewriting.lexicon import WordTable
from megatalker.prompt.rewriting.normalisation import Normaliser
from megatalker.prompt.rewriting.respelling import Part, Respeller

__all__ = ["TextRewriter"]


class TextRewriter:
    """Rewrites one clean text. What all :meth:`feed` calls and :meth:`finish` return, one after another, does not
    depend on how the text was cut. Work is linear in the text, and what waits for further text is bounded
    (``LONGEST_WORD`` of :mod:`megatalker.prompt.rewriting.lexicon` and ``MOST_HELD_CHARS`` of
    :mod:`megatalker.prompt.rewriting.grouping`).

    Args:
        tables: words to respell; none for no lexicon.
        normaliser: writes out what is no word; ``None``: nothing does.
    """

    def __init__(self, tables: Sequence[WordTable] = (), normaliser: Normaliser | None = None) -> None:
        self._respeller = Respeller(tables) if tables else None
        self._grouper: Grouper | None = None if normaliser is None else normaliser.grouper()

    def copy(self) -> "TextRewriter":
        """Return another one in the same state."""
        other = TextRewriter()
        other._respeller = None if self._respeller is None else self._respeller.copy()
        other._grouper = None if self._grouper is None else self._grouper.copy()
        return other

    def feed(self, text: str) -> str:
        """Return what is certain to be said after this piece of clean text."""
        return self._pass(text, final=False)

    def finish(self) -> str:
        """Return what was held back, since no text follows."""
        return self._pass("", final=True)

    def literal(self, text: str) -> str:
        """Return what is certain to be said with text that follows and stays as it is."""
        respeller, grouper = self._respeller, self._grouper
        said = "" if respeller is None else self._write(respeller.pass_over(text))
        return said + (text if grouper is None else grouper.literal(text))

    def whole(self, text: str) -> str:
        """Return a whole text rewritten; call nothing else then."""
        return self.feed(text) + self.finish()

    def _pass(self, text: str, *, final: bool) -> str:
        respeller, grouper = self._respeller, self._grouper
        parts = [(text, False)] if respeller is None else respeller.finish() if final else respeller.feed(text)
        said = self._write(parts)
        return said if grouper is None or not final else said + grouper.finish()

    def _write(self, parts: Sequence[Part]) -> str:
        grouper = self._grouper
        if grouper is None:
            return "".join(part for part, _ in parts)
        return "".join(grouper.literal(part) if respelled else grouper.feed(part) for part, respelled in parts)

"""Finds words of lexicons in text that arrives in pieces."""

from collections.abc import Sequence

from megatalker.prompt.rewriting.lexicon import WordTable, begins_word, fold

__all__ = ["Part", "Respeller"]

Part = tuple[str, bool]
"""Text, and whether it is a respelling, which stays as it is."""


class Respeller:
    """Replaces words in one text. What comes out does not depend on how the text was cut.

    Args:
        tables: words to look for. Of several words that begin at the same place the longest counts, and of the same
            word in several tables that of the first.
    """

    def __init__(self, tables: Sequence[WordTable]) -> None:
        self._tables = tables
        self._held = ""
        """Text that may be the beginning of a word, or a word that may go on."""
        self._before = ""
        """The character before the held text."""

    def feed(self, text: str) -> list[Part]:
        """Return the parts that ``text`` makes certain."""
        return self._read(text, final=False)

    def finish(self) -> list[Part]:
        """Return the parts that were held back, since no text follows."""
        return self._read("", final=True)

    def pass_over(self, text: str) -> list[Part]:
        """Return the parts that were held back, since text follows that is not looked at."""
        parts = self.finish()
        self._before = text[-1:] or self._before
        return parts

    def copy(self) -> "Respeller":
        """Return another one in the same state."""
        other = Respeller(self._tables)
        other._held, other._before = self._held, self._before
        return other

    def _read(self, piece: str, *, final: bool) -> list[Part]:
        text = self._held + piece
        folded = fold(text)
        parts: list[Part] = []
        done = at = 0
        before = self._before
        while at < len(text):
            if begins_word(before, text[at]):
                if not final and any(table.may_grow(folded, at) for table in self._tables):
                    break
                found = self._find(text, folded, at)
                if found is not None:
                    if at > done:
                        parts.append((text[done:at], False))
                    at, respelling = found
                    parts.append((respelling, True))
                    done, before = at, text[at - 1]
                    continue
            before = text[at]
            at += 1
        if at > done:
            parts.append((text[done:at], False))
        self._held, self._before = text[at:], before
        return parts

    def _find(self, text: str, folded: str, at: int) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        for table in self._tables:
            found = table.find(text, folded, at)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return best

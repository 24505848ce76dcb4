"""A text in markup on its way to clean text with controls."""

from megatalker.prompt.cleaning import TextCleaner
from megatalker.prompt.control_tokens import ControlTokens
from megatalker.prompt.markup.controls import encode_control
from megatalker.prompt.markup.parts import MarkupReader, Part
from megatalker.prompt.rewriting.rewriter import TextRewriter

__all__ = ["MarkedText"]


class MarkedText:
    """Reads one text in markup, in pieces, and cleans and rewrites what is spoken of it. What all :meth:`feed` calls
    and :meth:`finish` return, one after another, does not depend on how the text was cut.

    Between two controls, which end a paragraph each, text is rewritten like a text of its own.

    Args:
        reader: a new one.
        tokens: the checkpoint's control tokens.
        rewriter: a new one; ``None``: nothing is rewritten.
    """

    def __init__(self, reader: MarkupReader, tokens: ControlTokens, rewriter: TextRewriter | None) -> None:
        self._reader, self._tokens, self._pristine = reader, tokens, rewriter
        self._begin()

    def _begin(self) -> None:
        self._cleaner = TextCleaner(self._tokens)
        self._rewriter = None if self._pristine is None else self._pristine.copy()

    def feed(self, text: str) -> str:
        """Return what is certain to be spoken after this piece; raises as :meth:`MarkupReader.feed`."""
        return self._say(self._reader.feed(text))

    def finish(self) -> str:
        """Return what was held back, since no text follows; raises as :meth:`MarkupReader.finish`."""
        return self._say(self._reader.finish()) + self._end()

    def _say(self, parts: list[Part]) -> str:
        said: list[str] = []
        for part in parts:
            if part.kind == "text":
                said.append(self._rewrite(self._cleaner.feed(part.value)))
            elif part.kind == "literal":
                said.append(self._literal(part.value))
            else:
                said += [self._end(), encode_control(part)]
                self._begin()
        return "".join(said)

    def _rewrite(self, cleaned: str) -> str:
        return cleaned if self._rewriter is None else self._rewriter.feed(cleaned)

    def _literal(self, text: str) -> str:
        cleaner = self._cleaner
        before = self._rewrite(cleaner.finish())
        cleaned = cleaner.feed(text) + cleaner.finish()
        return before + (cleaned if self._rewriter is None else self._rewriter.literal(cleaned))

    def _end(self) -> str:
        rest = self._cleaner.finish()
        return rest if self._rewriter is None else self._rewriter.feed(rest) + self._rewriter.finish()

"""The text before the model: words of a lexicon are respelled, and what is no word is written out.

Both work on text that arrives in pieces, cut anywhere, and both are off unless they are asked for
(:class:`~megatalker.text.rewriter.TextRewriter`).
"""

from megatalker.text.lexicon import Lexicon
from megatalker.text.rewriter import TextRewriter

__all__ = ["Lexicon", "TextRewriter"]

"""The text before the model: words of a lexicon are respelled, and what is no word is written out.

Both work on text that arrives in pieces, cut anywhere, and both are off unless they are asked for
(:class:`~megatalker.prompt.rewriting.rewriter.TextRewriter`).
"""

from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.prompt.rewriting.rewriter import TextRewriter

__all__ = ["Lexicon", "TextRewriter"]

"""Decides by settings and options how the text of a request is rewritten."""

from collections.abc import Mapping
from typing import Literal

from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.prompt.rewriting.lexicon import Lexicon
from megatalker.prompt.rewriting.lexicon_files import LexiconFile
from megatalker.prompt.rewriting.normalisation import normaliser_of
from megatalker.prompt.rewriting.rewriter import TextRewriter
from megatalker.settings import Settings

__all__ = ["RewriterFactory"]

Words = Mapping[str, str | Mapping[str, str]] | Lexicon | None


class RewriterFactory:
    """Makes what rewrites a text. Thread-safe.

    Args:
        settings: with ``normalize`` and ``lexicon``.

    Raises:
        SettingsError: the lexicon cannot be read.
        UnsupportedError: ``normalize`` is on, and the extra ``text`` is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self._on = settings.normalize == "on"
        try:
            self._file = None if settings.lexicon is None else LexiconFile(settings.lexicon)
        except InvalidRequestError as error:
            raise SettingsError(f"lexicon: {error}") from error
        if self._on:
            normaliser_of(None).grouper()

    def make(
        self, language: str | None, normalize: Literal["off", "on"] | None, words: Words, *, cleaning: bool
    ) -> TextRewriter | None:
        """Return a new rewriter for one text; ``None``: it is spoken as it is.

        Args:
            language: of the text, by its name; ``None``: not known.
            normalize: the option of that name.
            words: the option ``lexicon``.
            cleaning: the text is cleaned.

        Raises:
            InvalidRequestError: an impossible option; or text that is not cleaned is to be rewritten.
            UnsupportedError: as the class.
        """
        if normalize not in (None, "off", "on"):
            raise InvalidRequestError(f"normalize is {normalize!r:.60}, expected 'off' or 'on'")
        if not cleaning:
            for name, asked in (("normalize", normalize == "on"), ("lexicon", words is not None)):
                if asked:
                    raise InvalidRequestError(
                        f"{name} changes the text, and clean_text=False gives the model the text as it is; "
                        "leave one of them out"
                    )
            return None
        lexicon = words if isinstance(words, Lexicon) or words is None else Lexicon(words)
        if self._file is not None:
            own = self._file.current()
            lexicon = own if lexicon is None else lexicon.over(own)
        tables = [] if lexicon is None else lexicon.tables(language)
        on = self._on if normalize is None else normalize == "on"
        normaliser = normaliser_of(language) if on else None
        return TextRewriter(tables, normaliser) if tables or normaliser is not None else None

"""Writes out what is no word: numbers, dates, amounts of money, units, addresses, abbreviations.

Numbers in words come from num2words, and names of months and units from Babel (Unicode's CLDR), where a language has
them there; both belong to the extra ``text`` and are imported when text is first written out.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec

from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.prompt.rewriting.grouping import Group, Grouper, GroupVocabulary
from megatalker.prompt.rewriting.normalisation.language import SpokenLanguage
from megatalker.prompt.rewriting.scripts import script_of

__all__ = ["LANGUAGES", "Normaliser", "normaliser_of"]

LANGUAGES: Mapping[str, tuple[str, str]] = {
    "chinese": ("east_asian", "Chinese"),
    "english": ("english", "English"),
    "french": ("french", "French"),
    "german": ("german", "German"),
    "italian": ("italian", "Italian"),
    "japanese": ("east_asian", "Japanese"),
    "korean": ("east_asian", "Korean"),
    "portuguese": ("portuguese", "Portuguese"),
    "russian": ("russian", "Russian"),
    "spanish": ("spanish", "Spanish"),
}
"""Module and class by the language's name."""

_BY_SCRIPT = {"cyrillic": "russian", "hangul": "korean", "kana": "japanese", "han": "chinese"}
"""Languages that ``auto`` tells by the letters around a number; all others are read as English."""


class Normaliser:
    """Writes out text of one language, or of the language that the letters around each number tell. Immutable.

    Args:
        language: a name of :data:`LANGUAGES`; ``None``: it is told by the letters.

    Raises:
        InvalidRequestError: text of this language cannot be written out.
        UnsupportedError: the extra ``text`` is not installed.
    """

    def __init__(self, language: str | None) -> None:
        if language is not None and language not in LANGUAGES:
            raise InvalidRequestError(
                f"text in {language} cannot be normalised, expected one of {', '.join(LANGUAGES)}, or auto; "
                "leave normalize off"
            )
        missing = [name for name in ("num2words", "babel") if find_spec(name) is None]
        if missing:
            raise UnsupportedError(
                f"normalize needs {' and '.join(missing)}; install them with: pip install 'megatalker[text]'"
            )
        self._language = language

    def grouper(self) -> Grouper:
        """Return what writes out one text. The first call imports and compiles: text that follows waits for nothing."""
        return Grouper(self._vocabulary, self._prefixes, self._write)

    def spoken(self, text: str) -> SpokenLanguage:
        """Return the language that a text is read in by itself."""
        return _spoken(self._language or _told(_alone(text)))

    def write(self, text: str) -> str:
        """Return a text written out as one group, whatever stands around it."""
        return self.spoken(text).write(_alone(text))

    @cached_property
    def _vocabulary(self) -> GroupVocabulary:
        if self._language is not None:
            return _spoken(self._language).vocabulary
        all_of = [_spoken(name).vocabulary for name in ("english", *_BY_SCRIPT.values())]
        return GroupVocabulary(
            frozenset().union(*(one.beginning for one in all_of)),
            frozenset().union(*(one.joining for one in all_of)),
            frozenset().union(*(one.counters for one in all_of)),
        )

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return self._vocabulary.prefixes

    def _write(self, group: Group) -> str:
        return _spoken(self._language or _told(group)).write(group)


def _alone(text: str) -> Group:
    return Group(text, "", "", "", "", kana=any(script_of(character) == "kana" for character in text))


def _told(group: Group) -> str:
    """Return the language of a group by its letters, else by those that touch it, else by the last one before it."""
    own = [script for script in map(script_of, group.text) if script in _BY_SCRIPT]
    near = [script for script in map(script_of, group.before + group.after) if script in _BY_SCRIPT]
    script: str = (*own, *near, group.script)[0]
    if script == "han" and (group.kana or "kana" in near):
        script = "kana"
    return _BY_SCRIPT.get(script, "english")


@lru_cache
def _spoken(language: str) -> SpokenLanguage:
    module, name = LANGUAGES[language]
    spoken: SpokenLanguage = getattr(import_module(f"{__name__}.{module}"), name)()
    spoken.prepare()
    return spoken


@lru_cache(maxsize=32)
def normaliser_of(language: str | None) -> Normaliser:
    """Return the normaliser of a language by its name, made once; raises as :class:`Normaliser`."""
    return Normaliser(language)

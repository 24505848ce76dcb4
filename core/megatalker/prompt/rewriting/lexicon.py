"""Respellings of words: what to write for a word so that it is pronounced as it should be.

A lexicon file is TOML: words with their respellings, which hold in every language, and tables of words that hold in one
language, named as the option ``language`` names it::

    "Nguyen" = "Win"

    [english]
    "Siobhan" = "Shivawn"
    "sql" = "sequel"
    "New York City" = "Noo York City"

A word that is written without capitals is found in any case; one with a capital only as it is written. Whole words are
found, the longest first; in Chinese, Japanese and Korean, which do not part words by spaces, anywhere. What replaces a
word is spoken as it stands there: it is neither looked up nor normalised.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from megatalker.errors import InvalidRequestError
from megatalker.prompt.cleaning import clean
from megatalker.prompt.languages import NAMES, name_of
from megatalker.prompt.rewriting.scripts import in_word, is_wide

__all__ = ["Lexicon", "WordTable"]

MOST_WORDS = 50_000
"""Words of a lexicon."""
LONGEST_WORD = 64
"""Characters of a word or of several words with one respelling: as much text may be held back."""
LONGEST_RESPELLING = 256
"""Characters of a respelling."""


def fold(text: str) -> str:
    """Return the text without differences of case, character by character."""
    return text.replace("\u0130", "i").replace("\u03a3", "\u03c3").replace("\u03c2", "\u03c3").lower()


class WordTable:
    """Words of one language, found in text.

    Args:
        words: respellings by word, both checked.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._exact: dict[str, str] = {}
        self._folded: dict[str, str] = {}
        for word, respelling in words.items():
            if word == word.lower():
                self._folded[fold(word)] = respelling
            else:
                self._exact[word] = respelling
        keys = {fold(word) for word in words}
        lengths: dict[str, set[int]] = {}
        for key in keys:
            lengths.setdefault(key[0], set()).add(len(key))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._prefixes = {key[:end] for key in keys for end in range(1, len(key) + 1)}

    def __len__(self) -> int:
        return len(self._exact) + len(self._folded)

    def find(self, text: str, folded: str, start: int) -> tuple[int, str] | None:
        """Return the end of the longest word that begins at ``start``, and its respelling; ``None``: there is none.

        Args:
            text: clean text that goes on for a character after the longest word, or ends.
            folded: its :func:`fold`.
            start: where a word may begin.
        """
        for length in self._lengths.get(folded[start : start + 1], ()):
            end = start + length
            respelling = self._exact.get(text[start:end])
            if respelling is None:
                respelling = self._folded.get(folded[start:end])
            if respelling is not None and end <= len(text) and _ends_word(text, end):
                return end, respelling
        return None

    def may_grow(self, folded: str, start: int) -> bool:
        """Whether more text can decide what word begins at ``start``: what is there is the beginning of one, or all."""
        length = len(folded) - start
        lengths = self._lengths.get(folded[start])
        return lengths is not None and length <= lengths[0] and folded[start:] in self._prefixes


def begins_word(before: str, character: str) -> bool:
    """Whether a word of a lexicon may begin with ``character``, which follows ``before``, the text's last one or ""."""
    return not before or is_wide(character) or not in_word(character) or not in_word(before) or is_wide(before)


def _ends_word(text: str, end: int) -> bool:
    last, following = text[end - 1], text[end : end + 1]
    if not following:
        return True
    if unicodedata.category(following)[0] == "M":  # an accent makes another letter of the last one
        return False
    return is_wide(last) or not in_word(last) or not in_word(following) or is_wide(following)


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Respellings; immutable, and checked when it is made.

    Raises:
        InvalidRequestError: an impossible language, word or respelling; it is named.
    """

    words: Mapping[str, str | Mapping[str, str]]
    """Respellings by word, and tables of them by language: ``english`` or ``en``."""
    name: str = "lexicon"
    """Its name in errors."""
    base: "Lexicon | None" = None
    """Words to look for where this lexicon has none of the same length."""
    _checked: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False, init=False)
    """By the language's name; those of every language by ""."""
    _tables: dict[str | None, WordTable] = field(default_factory=dict, repr=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.words, Mapping):
            raise InvalidRequestError(f"{self.name} is {self.words!r:.60}, expected respellings by word")
        flat = {word: said for word, said in self.words.items() if not isinstance(said, Mapping)}
        checked = {"": dict(self._check("", flat))}
        for language, words in self.words.items():
            if isinstance(words, Mapping):
                checked.setdefault(self._language(language), {}).update(self._check(language, words))
        count = sum(map(len, checked.values()))
        if count > MOST_WORDS:
            raise InvalidRequestError(f"{self.name} has {count} words, expected at most {MOST_WORDS}; leave some out")
        object.__setattr__(self, "_checked", checked)

    def over(self, base: "Lexicon | None") -> "Lexicon":
        """Return this lexicon, and where it has no word, those of ``base``."""
        if base is None:
            return self
        over = Lexicon({}, self.name, base if self.base is None else self.base.over(base))
        object.__setattr__(over, "words", self.words)
        object.__setattr__(over, "_checked", self._checked)
        object.__setattr__(over, "_tables", self._tables)
        return over

    def tables(self, language: str | None) -> list[WordTable]:
        """Return the words to look for in text of this language; ``None``, which stands for ``auto``: of all."""
        table = self._tables.get(language)
        if table is None:
            chosen: dict[str, str] = {}
            for name, words in self._checked.items():
                if language is None:
                    chosen = {**words, **chosen}
                elif name in ("", language):
                    chosen |= words
            table = self._tables[language] = WordTable(chosen)
        further = [] if self.base is None else self.base.tables(language)
        return [table, *further] if len(table) else further

    def merged(self) -> dict[str, str | dict[str, str]]:
        """Return all words, those of :attr:`base` too, as :attr:`words` holds them."""
        found: dict[str, str | dict[str, str]] = {} if self.base is None else self.base.merged()
        for language, words in self._checked.items():
            if not language:
                found |= words
                continue
            table = found.get(language)
            found[language] = {**(table if isinstance(table, dict) else {}), **words}
        return found

    def counts(self) -> Mapping[str, int]:
        """Return the number of words by language; those of every language by ""."""
        return {language: len(words) for language, words in self._checked.items() if words}

    def _language(self, language: object) -> str:
        name = language.strip().lower() if isinstance(language, str) else ""
        meant = name if name in NAMES.values() else name_of(name)
        if meant is None:
            raise InvalidRequestError(
                f"{self.name} has a table {language!r:.80}, expected one of {', '.join(sorted(NAMES.values()))}, or a "
                "code such as en"
            )
        return meant

    def _check(self, language: object, words: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        seen: dict[str, object] = {}
        for word, respelling in words.items():
            where = f"{self.name}, {f'{language}, ' if language else ''}{word!r:.80}"
            if not isinstance(word, str) or not isinstance(respelling, str):
                raise InvalidRequestError(f"{where}: the respelling is {respelling!r:.60}, expected text")
            key, value = _tidy(word), _tidy(respelling)
            if not 0 < len(key) <= LONGEST_WORD or not any(map(str.isalnum, key)):
                raise InvalidRequestError(
                    f"{where}: the word has {len(key)} characters, expected 1 to {LONGEST_WORD}, a letter or digit "
                    "among them"
                )
            if not len(value) <= LONGEST_RESPELLING or not any(map(str.isalnum, value)):
                raise InvalidRequestError(
                    f"{where}: the respelling has {len(value)} characters, expected 1 to {LONGEST_RESPELLING}, a "
                    "letter or digit among them: what should be said"
                )
            if key in seen:
                raise InvalidRequestError(f"{where}: it is the same word as {seen[key]!r:.80}; remove one of them")
            seen[key] = word
            yield key, value


def _tidy(text: str) -> str:
    return unicodedata.normalize("NFC", clean(text)).strip()

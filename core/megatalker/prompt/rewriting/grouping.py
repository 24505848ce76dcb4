"""Finds the parts of a text that are written out: numbers and what belongs to them, addresses, abbreviations.

A text is a row of atoms: words and signs between spaces, spaces, marks, and single characters of Chinese, Japanese and
Korean. A *group* is a row of atoms that can only be read together, such as ``$5 million`` or ``3. März 2024, 10:30``:
it begins with an atom that is no plain word, and goes on until a word that cannot belong to it. Groups depend on
nothing but the text, so that they are the same however it was cut, and each is written out by itself.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from megatalker.prompt.rewriting.scripts import in_word, is_wide, script_of

__all__ = ["MOST_HELD_CHARS", "Group", "GroupVocabulary", "Grouper", "is_address"]

MOST_GROUP_CHARS = 256
"""A group ends at the first atom after as many characters."""
MOST_ATOM_CHARS = 256
"""A word without a space that is longer ends here."""
MOST_HELD_CHARS = MOST_GROUP_CHARS + 2 * MOST_ATOM_CHARS
"""Most characters of a text that wait for what may follow them."""

MOST_WORD_CHARS = 16
"""Characters that are kept of the word before a group."""

_MARKS = frozenset(';!?"()[]{}…“”„«»‹›¿¡*|\\<>，。！？；：、（）「」『』《》【】〜～・·')  # noqa: RUF001
"""Characters that are atoms by themselves. Full stops, colons and apostrophes may stand within an atom."""
_JOINING_MARKS = frozenset(",()")
"""Marks that do not end a group."""
_BLANKS = frozenset(" \u2029")
_TRAILING = ".,:;'’"  # noqa: RUF001


@dataclass(frozen=True)
class GroupVocabulary:
    """The words of a language that a group may hold.

    Args:
        beginning: folded words that begin a group: abbreviations, months.
        joining: folded words that continue one: units, "million", "p.m.".
        counters: Chinese, Japanese and Korean characters that continue one.
    """

    beginning: frozenset[str]
    joining: frozenset[str]
    counters: frozenset[str]

    @property
    def prefixes(self) -> frozenset[str]:
        """Beginnings of all words, and the words."""
        words = self.beginning | self.joining
        return frozenset(word[:end] for word in words for end in range(1, len(word) + 1))


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a text to be written out."""

    text: str
    before: str
    """The character before it, or "" at the beginning."""
    after: str
    """The character after it, or "" where the text ends, or the group because it is too long."""
    word: str
    """The last word before it, or its end, folded."""
    script: str
    """Script of the last letter before it."""
    kana: bool
    """Japanese letters came before it."""


class Grouper:
    """Cuts one text into groups and what stands between them, and passes both on in order.

    Args:
        vocabulary: of the text's language.
        prefixes: its :attr:`GroupVocabulary.prefixes`.
        write: returns what to say for a group.
    """

    def __init__(self, vocabulary: GroupVocabulary, prefixes: Collection[str], write: Callable[[Group], str]) -> None:
        self._vocabulary, self._prefixes, self._write = vocabulary, prefixes, write
        self._atom = ""
        """The beginning of an atom that may go on."""
        self._group: list[str] = []
        self._group_chars = 0
        self._before = self._group_before = ""
        """The character before the atom, and the one before the group."""
        self._script, self._kana, self._word = "", False, ""

    def copy(self) -> "Grouper":
        """Return another one in the same state."""
        other = Grouper(self._vocabulary, self._prefixes, self._write)
        other._atom, other._group, other._group_chars = self._atom, list(self._group), self._group_chars
        other._before, other._group_before = self._before, self._group_before
        other._script, other._kana, other._word = self._script, self._kana, self._word
        return other

    def feed(self, text: str) -> str:
        """Return what is certain to be said after this piece."""
        said: list[str] = []
        for character in text:
            if self._atom and self._parts(character):
                self._end_atom(said)
            if self._is_single(character):
                self._take(character, said)
            else:
                self._atom += character
        if self._group and self._atom and not self._may_join(self._atom):
            said.append(self._close(self._atom[0]))
        return "".join(said)

    def literal(self, text: str) -> str:
        """Return what is certain with a respelling that follows: it ends what stands before it, and stays as it is."""
        said: list[str] = []
        self._end_atom(said)
        said += [self._close(text[:1]), text]
        self._note(text)
        return "".join(said)

    def finish(self) -> str:
        """Return what was held back, since no text follows."""
        said: list[str] = []
        self._end_atom(said)
        said.append(self._close(""))
        return "".join(said)

    # ---- atoms

    def _is_single(self, character: str) -> bool:
        if character in "?!*" and _is_link(self._atom):
            return False
        if character in _BLANKS or character in _MARKS or is_wide(character):
            return True
        return character == "," and not (self._atom and self._atom[-1].isdigit())

    def _parts(self, character: str) -> bool:
        """Whether the atom so far ends before this character."""
        atom = self._atom
        if len(atom) >= MOST_ATOM_CHARS or self._is_single(character):
            return True
        return atom[-1] == "," and not character.isdigit()

    def _end_atom(self, said: list[str]) -> None:
        atom, self._atom = self._atom, ""
        if not atom:
            return
        body = atom.rstrip(",")
        self._take(body, said)
        for mark in atom[len(body) :]:
            self._take(mark, said)

    def _take(self, atom: str, said: list[str]) -> None:
        if self._group and not self._joins(atom):
            said.append(self._close(atom[0]))
        elif self._group_chars + len(atom) > MOST_GROUP_CHARS:
            said.append(self._close(""))
        if self._group or self._begins(atom):
            if not self._group:
                self._group_before = self._before
            self._group.append(atom)
            self._group_chars += len(atom)
        else:
            said.append(atom)
        self._before = atom[-1]
        if not self._group:
            self._note(atom)

    def _close(self, after: str) -> str:
        if not self._group:
            return ""
        text, self._group, self._group_chars = "".join(self._group), [], 0
        said = self._write(Group(text, self._group_before, after, self._word, self._script, self._kana))
        self._note(text)
        return said

    def _note(self, text: str) -> None:
        self._before = text[-1:] or self._before
        if any(map(str.isalnum, text)):
            self._word = text.strip()[-MOST_WORD_CHARS:].lower()
        for character in text:
            script = script_of(character)
            if script:
                self._script, self._kana = script, self._kana or script == "kana"

    # ---- what belongs to a group

    def _begins(self, atom: str) -> bool:
        if atom == "(":
            return True
        if len(atom) == 1 and (atom in _BLANKS or atom in _MARKS or atom == "," or is_wide(atom)):
            return False
        return is_odd(atom) or _core(atom) in self._vocabulary.beginning or atom.lower() in self._vocabulary.beginning

    def _joins(self, atom: str) -> bool:
        if len(atom) == 1:
            if atom == " " or atom in _JOINING_MARKS:
                return True
            if atom in _BLANKS or atom in _MARKS:
                return False
            if is_wide(atom):
                return atom in self._vocabulary.counters
        if not _begins_like_word(atom):
            return True
        vocabulary = self._vocabulary
        folded, core = atom.lower(), _core(atom)
        return any(word in words for word in (folded, core) for words in (vocabulary.joining, vocabulary.beginning))

    def _may_join(self, beginning: str) -> bool:
        """Whether an atom that begins like this may belong to the group before it."""
        if not _begins_like_word(beginning):
            return True
        return beginning.lower() in self._prefixes or _core(beginning) in self._prefixes


def _core(atom: str) -> str:
    return atom.rstrip(_TRAILING).lower()


def _begins_like_word(atom: str) -> bool:
    return atom[0].isalpha()


def is_odd(atom: str) -> bool:
    """Whether an atom is more than a word with its punctuation: it holds a digit or a sign, or is an address."""
    core = atom.strip(_TRAILING + "-–—")  # noqa: RUF001
    for index, character in enumerate(core):
        if in_word(character) and not character.isnumeric() and character != "_":
            continue
        if character in "-'’‐‑–—":  # noqa: RUF001
            continue
        if character == "." and not is_address(core):
            continue
        if character in "/:_" and index and not is_address(core):
            continue
        return True
    return False


_ENDINGS = frozenset(
    [
        "com",
        "org",
        "net",
        "edu",
        "gov",
        "io",
        "ai",
        "de",
        "uk",
        "fr",
        "es",
        "it",
        "pt",
        "br",
        "ru",
        "cn",
        "jp",
        "kr",
        "eu",
        "info",
        "dev",
        "app",
        "co",
        "ch",
        "at",
        "us",
        "me",
        "tv",
    ]
)
"""Last parts of host names that are taken for such without ``www.`` or ``https://`` before them."""


def _is_link(atom: str) -> bool:
    return "://" in atom[:10] or atom[:4].lower() == "www."


def is_address(core: str) -> bool:
    """Whether it is the address of a host or page, without white space."""
    if _is_link(core):
        return True
    lowered = core.lower()
    host = lowered.partition("/")[0]
    name, dot, ending = host.rpartition(".")
    return bool(dot) and len(name) > 1 and ending in _ENDINGS and not name.startswith(".")

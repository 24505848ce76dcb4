"""The words that the demo voice is trained on: our own lists, from this folder."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_IRREGULAR = {
    "child": "children",
    "deer": "deer",
    "fish": "fish",
    "fisherman": "fishermen",
    "firefighter": "firefighters",
    "goose": "geese",
    "knife": "knives",
    "leaf": "leaves",
    "man": "men",
    "moose": "moose",
    "mouse": "mice",
    "ox": "oxen",
    "salmon": "salmon",
    "scissors": "scissors",
    "sheep": "sheep",
    "shelf": "shelves",
    "toothbrush": "toothbrushes",
    "wolf": "wolves",
    "woman": "women",
}
_CONSONANT_SOUND = ("uni", "use", "usual", "one", "euro")
_VOWEL_SOUND = ("honest", "hour")


@dataclass(frozen=True, slots=True)
class Verb:
    """The four forms that templates use."""

    base: str
    third: str
    past: str
    gerund: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Word lists by kind."""

    things: tuple[str, ...]
    people: tuple[str, ...]
    animals: tuple[str, ...]
    places: tuple[str, ...]
    names: tuple[str, ...]
    towns: tuple[str, ...]
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]
    food: tuple[str, ...]
    verbs: tuple[Verb, ...]
    motions: tuple[Verb, ...]
    other: tuple[str, ...]
    commands: tuple[str, ...]
    """Fifty words for the intelligibility check."""
    sentences: tuple[str, ...]
    """Everyday sentences, taken as they are."""
    templates: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Every single word, in all forms."""
        nouns = (*self.things, *self.people, *self.animals, *self.places)
        verbs = [
            form for verb in (*self.verbs, *self.motions) for form in (verb.base, verb.third, verb.past, verb.gerund)
        ]
        lists = (nouns, map(plural, nouns), self.names, self.towns, self.adjectives, verbs, self.other, self.commands)
        return tuple(dict.fromkeys(word for words in lists for word in words))


@cache
def vocabulary() -> Vocabulary:
    """Read the lists."""
    return Vocabulary(
        things=_words("things"),
        people=_words("people"),
        animals=_words("animals"),
        places=_words("places"),
        names=_words("names"),
        towns=_words("towns"),
        adjectives=_words("adjectives"),
        adverbs=_phrases("adverbs"),
        food=_phrases("food"),
        verbs=_verbs("verbs"),
        motions=_verbs("motions"),
        other=_words("other"),
        commands=_words("commands"),
        sentences=tuple(_read("sentences").splitlines()),
        templates=tuple(_read("templates").splitlines()),
    )


def plural(noun: str) -> str:
    """The plural of a noun of the lists."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(phrase: str) -> str:
    """``a`` or ``an`` before a word, by its first sound."""
    vowel = phrase.startswith(_VOWEL_SOUND) or (phrase[0] in "aeiou" and not phrase.startswith(_CONSONANT_SOUND))
    return f"{'an' if vowel else 'a'} {phrase}"


def _read(name: str) -> str:
    return (files(__package__) / "words" / f"{name}.txt").read_text(encoding="utf-8")


def _words(name: str) -> tuple[str, ...]:
    return tuple(_read(name).split())


def _phrases(name: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in _read(name).split(","))


def _verbs(name: str) -> tuple[Verb, ...]:
    return tuple(Verb(*line.split()) for line in _read(name).splitlines())

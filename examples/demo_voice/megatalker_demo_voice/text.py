"""Makes up text for the demo voice to learn and to be tested with: always the same from the same seed."""

import random
import re
from collections.abc import Callable

from megatalker_demo_voice import numerals
from megatalker_demo_voice.invented import invented_word
from megatalker_demo_voice.splits import is_held_out
from megatalker_demo_voice.vocabulary import Verb, plural, vocabulary, with_article

_SLOT = re.compile(r"\{(\w+)\}")
_NOUNS = {"thing": "things", "person": "people", "animal": "animals", "place": "places"}
_MANY = {"things": "things", "people": "people", "animals": "animals"}
_FORMS = {"": "base", "_s": "third", "_ed": "past", "_ing": "gerund"}
_NUMERALS: dict[str, Callable[[random.Random], str]] = {
    "n": numerals.small_number,
    "num": numerals.number,
    "time": numerals.time,
    "money": numerals.money,
    "year": numerals.year,
    "date": numerals.date,
    "percent": numerals.percent,
    "month": lambda rng: rng.choice(numerals.MONTHS),
    "weekday": lambda rng: rng.choice(numerals.WEEKDAYS),
    "digits": lambda rng: numerals.digits(rng, rng.randint(3, 8)),
}
MAX_CHARS = 400
"""The longest text that an engine hands to a talker in one piece, by default."""


class TextSource:
    """Endless text from one seed."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._lists = vocabulary()
        self._words = self._lists.words

    def utterance(self) -> str:
        """One thing to say: from a single word up to several sentences."""
        kinds: tuple[tuple[Callable[[], str], float], ...] = (
            (self.sentence, 0.38),
            (self._loose_words, 0.16),
            (self.command_words, 0.08),
            (self.digit_string, 0.10),
            (self._numbers, 0.06),
            (self._everyday, 0.06),
            (self._rare_words, 0.06),
            (self._several_sentences, 0.10),
        )
        return self._rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    def held_out_utterance(self) -> str:
        """One thing to say that training never sees."""
        while not is_held_out(text := self.utterance()):
            pass
        return text

    def short_utterance(self) -> str:
        """One to four words."""
        if self._rng.random() < 0.25:
            return self.digit_string(self._rng.randint(1, 3))
        return self._punctuated([self._word() for _ in range(self._rng.randint(1, 4))])

    def sentence(self) -> str:
        """A filled template."""
        template = self._rng.choice(self._lists.templates)
        text = _SLOT.sub(lambda match: self._fill(match[1]), template)
        return text[0].upper() + text[1:]

    def digit_string(self, count: int | None = None) -> str:
        """Single digits, spoken one by one."""
        count = count or self._rng.choice((3, 4, 5, 5, 5, 5, 6, 7, 8, 10))
        form = numerals.digits if self._rng.random() < 0.6 else numerals.digit_words
        text = form(self._rng, count)
        return text if self._rng.random() < 0.3 else text + "."

    def command_words(self, count: int | None = None) -> str:
        """Words of the intelligibility check."""
        count = count or self._rng.choice((1, 2, 3, 4, 5, 5, 5, 5, 6, 8))
        return self._punctuated([self._rng.choice(self._lists.commands) for _ in range(count)])

    def _loose_words(self) -> str:
        count = self._rng.choice((1, 1, 2, 2, 3, 4, 5, 6, 8, 10))
        return self._punctuated([self._word() for _ in range(count)])

    def _word(self) -> str:
        return self._rng.choice(self._words)

    def _rare_words(self) -> str:
        words = [
            invented_word(self._rng) if self._rng.random() < 0.6 else self._word()
            for _ in range(self._rng.randint(1, 6))
        ]
        return self._punctuated(words)

    def _numbers(self) -> str:
        kinds = ("num", "num", "time", "money", "year", "date", "percent")
        return self._punctuated(
            [self._fill(self._rng.choice(kinds)) for _ in range(self._rng.randint(1, 3))], commas=1.0
        )

    def _everyday(self) -> str:
        return self._rng.choice(self._lists.sentences)

    def _several_sentences(self) -> str:
        limit = self._rng.choice((80, 120, 160, 200, 300, MAX_CHARS))
        text = self._any_sentence()
        while len(longer := f"{text} {self._any_sentence()}") <= limit:
            text = longer
        return text

    def _any_sentence(self) -> str:
        return self._everyday() if self._rng.random() < 0.2 else self.sentence()

    def _punctuated(self, words: list[str], commas: float = 0.15) -> str:
        gap = ", " if self._rng.random() < commas else " "
        text = gap.join(words)
        if self._rng.random() < 0.7:
            text = text[0].upper() + text[1:]
        return text + self._rng.choices((".", "", "?", "!"), (6, 3, 0.5, 0.5))[0]

    def _fill(self, slot: str) -> str:
        rng, lists = self._rng, self._lists
        if slot in _NUMERALS:
            return _NUMERALS[slot](rng)
        if slot.endswith("_cap"):
            return self._fill(slot.removesuffix("_cap")).capitalize()
        if slot.startswith("a_"):
            return with_article(self._fill(slot.removeprefix("a_")))
        if slot in _NOUNS:
            return str(rng.choice(getattr(lists, _NOUNS[slot])))
        if slot in _MANY:
            return plural(rng.choice(getattr(lists, _MANY[slot])))
        for kind, verbs in (("verb", lists.verbs), ("go", lists.motions)):
            if slot.startswith(kind):
                verb: Verb = rng.choice(verbs)
                return str(getattr(verb, _FORMS[slot.removeprefix(kind)]))
        single = {
            "name": lists.names,
            "town": lists.towns,
            "adj": lists.adjectives,
            "adv": lists.adverbs,
            "food": lists.food,
            "food_word": lists.food,
            "word": self._words,
        }
        chosen: str = rng.choice(single[slot])
        return chosen

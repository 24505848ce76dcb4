"""French."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_EURO = Money({"one": "euro", "other": "euros"}, {"one": "centime", "other": "centimes"})
_DOLLAR = Money({"one": "dollar", "other": "dollars"}, {"one": "cent", "other": "cents"})
_UNDER = {2: "demi", 3: "tiers", 4: "quart"}


class French(SpokenLanguage):
    """French."""

    code = "fr"
    date_signs = "/."
    point, minus, plus, to, number_sign, percent = "virgule", "moins", "plus", "à", "numéro", "pour cent"
    signs = {".": "point", "@": "arobase", "/": "barre oblique", "-": "tiret", "_": "tiret bas", ":": "deux points"}
    money = {
        "€": _EURO,
        "EUR": _EURO,
        "$": _DOLLAR,
        "USD": Money({"one": "dollar américain", "other": "dollars américains"}, {"one": "cent", "other": "cents"}),
        "£": Money({"one": "livre", "other": "livres"}, {"other": "pence"}, "f"),
        "¥": Money({"one": "yen", "other": "yens"}),
        "CHF": Money({"one": "franc suisse", "other": "francs suisses"}, {"one": "centime", "other": "centimes"}),
    }
    abbreviations = {
        "M.": "Monsieur",
        "MM.": "Messieurs",
        "Mme": "Madame",
        "Mlle": "Mademoiselle",
        "Dr": "Docteur",
        "St": "Saint",
        "Ste": "Sainte",
        "etc.": "et cetera",
        "p. ex.": "par exemple",
        "c.-à-d.": "c'est-à-dire",
        "av.": "avenue",
        "env.": "environ",
        "tél.": "téléphone",
    }
    before_numbers = {"n°": "numéro", "N°": "Numéro", "nº": "numéro", "p.": "page"}
    closing = frozenset({"etc."})
    scales = {
        "million": "million",
        "millions": "millions",
        "milliard": "milliard",
        "milliards": "milliards",
        "M": "millions",
    }
    joining_words = frozenset({"ex", "heures", "h"})
    feminine_units = frozenset(
        {"mass-pound", "mass-ounce", "duration-hour", "duration-minute", "duration-second", "duration-millisecond"}
    )
    millions = ("million", "millions", "milliard", "milliards")
    decimal_pairs = True
    halves = {(1, 2): "un demi", (1, 3): "un tiers", (2, 3): "deux tiers", (1, 4): "un quart", (3, 4): "trois quarts"}

    def agree(self, number: int, words: str, gender: str) -> str:
        return words + "e" if gender == "f" and words.endswith("un") else words

    def ordinal(self, number: int, gender: str = "m") -> str:
        if number == 1:
            return "première" if gender == "f" else "premier"
        return super().ordinal(number)

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said = f"{'premier' if day == 1 else self.cardinal(day)} {said}"
        return said if year is None else f"{said} {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = f"{self.cardinal(hour, 'f')} heure{'s' if hour > 1 else ''}"
        if minute:
            said += f" {self.cardinal(minute, 'f')}"
        return said if second is None else f"{said} et {self.cardinal(second, 'f')} secondes"

    def scaled(self, unit: str) -> str:
        return f"d'{unit}" if unit[0] in "aeiou" else f"de {unit}"

    def cents(self, money: Money, whole: str, cents: str) -> str:
        if not int(self.plain(whole)) and int(cents):
            return super().cents(money, whole, cents)
        unit = money.unit.get(self.plural(self.plain(whole))) or money.unit["other"]
        said = f"{self.spell(whole, money.gender)} {unit}"
        return f"{said} {self.cardinal(int(cents))}" if int(cents) else said

    def fraction(self, over: int, under: int) -> str | None:
        if (over, under) in self.halves or not 1 <= over < under <= 20:
            return self.halves.get((over, under))
        name = _UNDER.get(under) or self.ordinal(under)
        return f"{self.cardinal(over)} {name}{'s' if over > 1 and not name.endswith('s') else ''}"

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} et {fraction}"

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY + rf"(?:er)? (?P<month>{self.month_pattern})(?![^\W_])\.?(?: (?P<year>[12]\d{{3}})(?!\d))?",
                re.I,
            ),
            self._month,
        )
        yield (
            re.compile(r"(?P<hour>2[0-4]|[01]?\d) ?[hH](?: ?(?P<minute>[0-5]\d))?(?![\w/])"),
            lambda match: self.time(int(match["hour"]), int(match["minute"] or 0), None),
        )
        yield re.compile(r"(?P<number>\d{1,6})(?P<ending>ère|er|re|ème|nde|nd|e)(?![^\W_])"), self._ordinal

    def _ordinal(self, match: re.Match[str]) -> str:
        number, ending = int(match["number"]), match["ending"]
        if ending in ("nd", "nde"):
            return "second" if ending == "nd" else "seconde"
        return self.ordinal(number, "f" if ending in ("ère", "re") else "m")

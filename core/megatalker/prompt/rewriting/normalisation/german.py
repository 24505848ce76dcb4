"""German."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.grouping import Group
from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_EURO = Money({"other": "Euro"}, {"other": "Cent"})
_DOLLAR = Money({"other": "Dollar"}, {"other": "Cent"})
_UNDER = {2: "halb", 3: "drittel", 7: "siebtel", 8: "achtel"}


_ENDING = "\0"
"""Stands for the ending of an ordinal number, which the word before it decides."""
_DATIVE = frozenset({"am", "vom", "zum", "beim", "dem", "den", "des", "ab", "seit", "bis", "im", "nach", "vor"})
_NOMINATIVE = frozenset({"der", "die", "das"})


class German(SpokenLanguage):
    """German."""

    code = "de"
    date_signs = "."
    point, minus, plus, to, number_sign, percent = "Komma", "minus", "plus", "bis", "Nummer", "Prozent"
    signs = {".": "Punkt", "@": "at", "/": "Schrägstrich", "-": "Minus", "_": "Unterstrich", ":": "Doppelpunkt"}
    money = {
        "€": _EURO,
        "EUR": _EURO,
        "$": _DOLLAR,
        "USD": Money({"other": "US-Dollar"}, {"other": "Cent"}),
        "£": Money({"other": "Pfund"}, {"other": "Pence"}, "n"),
        "¥": Money({"other": "Yen"}),
        "CHF": Money({"other": "Schweizer Franken"}, {"other": "Rappen"}),
    }
    abbreviations = {
        "z. B.": "zum Beispiel",
        "z.B.": "zum Beispiel",
        "d. h.": "das heißt",
        "d.h.": "das heißt",
        "u. a.": "unter anderem",
        "u.a.": "unter anderem",
        "usw.": "und so weiter",
        "bzw.": "beziehungsweise",
        "ca.": "circa",
        "Dr.": "Doktor",
        "Prof.": "Professor",
        "Nr.": "Nummer",
        "Str.": "Straße",
        "St.": "Sankt",
        "evtl.": "eventuell",
        "inkl.": "inklusive",
        "ggf.": "gegebenenfalls",
        "vgl.": "vergleiche",
        "Hr.": "Herr",
        "Fr.": "Frau",
        "Tel.": "Telefon",
        "Mio.": "Millionen",
        "Mrd.": "Milliarden",
        "Jh.": "Jahrhundert",
    }
    closing = frozenset({"usw.", "Str.", "Jh."})
    scales = {"Mio.": "Millionen", "Mrd.": "Milliarden", "Millionen": "Millionen", "Milliarden": "Milliarden"}
    joining_words = frozenset({"uhr", "mio", "mrd", "b", "h", "a"})
    feminine_units = frozenset(
        {"length-mile", "duration-hour", "duration-minute", "duration-second", "duration-millisecond",
         "energy-kilowatt-hour", "mass-ounce"}
    )  # fmt: skip
    halves = {(1, 2): "ein halb", (1, 4): "ein Viertel", (3, 4): "drei Viertel"}

    noun_gender = "n"

    def write(self, group: Group) -> str:
        ending = "n" if group.word in _DATIVE else "" if group.word in _NOMINATIVE else "r"
        return super().write(group).replace(_ENDING, ending)

    def agree(self, number: int, words: str, gender: str) -> str:
        if number == 1:
            return "eine" if gender == "f" else "ein"
        return words

    def ordinal(self, number: int, gender: str = "m") -> str:
        return super().ordinal(number) + ("r" if gender == "m" else "")

    def year(self, year: int) -> str:
        from num2words import num2words

        words: str = num2words(year, lang="de", to="year")
        return words

    def is_year(self, number: str) -> bool:
        return len(number) == 4 and number.isdigit() and 1100 <= int(number) <= 1999

    def date(self, day: int | None, month: int, year: int | None) -> str:
        name = self.months[month - 1]
        said = name if day is None else f"{self.ordinal(day, '')}{_ENDING} {name}"
        return said if year is None else f"{said} {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = f"{self.cardinal(hour, 'm')} Uhr"
        if minute:
            said += f" {self.cardinal(minute)}"
        return said if second is None else f"{said} und {self.cardinal(second, 'f')} Sekunden"

    def cents(self, money: Money, whole: str, cents: str) -> str:
        unit = money.unit["other"]
        if not int(self.plain(whole)) and money.cent is not None:
            return super().cents(money, whole, cents)
        said = f"{self.spell(whole, money.gender)} {unit}"
        return f"{said} {self.cardinal(int(cents))}" if int(cents) else said

    def fraction(self, over: int, under: int) -> str | None:
        if (over, under) in self.halves or not 1 <= over < under <= 20:
            return self.halves.get((over, under))
        name = _UNDER.get(under) or self.cardinal(under) + ("stel" if under == 20 else "tel")
        return f"{self.cardinal(over, 'n')} {name.capitalize()}"

    def mixed(self, whole: str, fraction: str) -> str:
        if fraction == "ein halb":
            return ("ein" if whole == "eins" else whole) + "einhalb"
        return f"{whole} {fraction}"

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY + rf"\. ?(?P<month>{self.month_pattern})(?![^\W_])\.?(?: (?P<year>[12]\d{{3}})(?!\d))?",
                re.I,
            ),
            self._month,
        )
        yield re.compile(r"(?P<day>[12]\d|3[01]|0?[1-9])\.(?P<month>1[0-2]|0?[1-9])\.(?!\d)"), self._short_date
        yield (
            re.compile(r"(?P<hour>2[0-4]|[01]?\d)(?:[:.](?P<minute>[0-5]\d))?(?::(?P<second>[0-5]\d))? Uhr(?![^\W_])"),
            lambda match: self.time(
                int(match["hour"]), int(match["minute"] or 0), None if match["second"] is None else int(match["second"])
            ),
        )

    def _short_date(self, match: re.Match[str]) -> str:
        return self.date(int(match["day"]), int(match["month"]), None)

"""English, as it is written and read in the United States where the two differ."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from megatalker.prompt.rewriting.normalisation.language import Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_DOLLAR = Money({"one": "dollar", "other": "dollars"}, {"one": "cent", "other": "cents"})
_EURO = Money({"one": "euro", "other": "euros"}, {"one": "cent", "other": "cents"})
_POUND = Money({"one": "pound", "other": "pounds"}, {"one": "penny", "other": "pence"})
_YEN = Money({"other": "yen"})
_UNDER = {2: "half", 4: "quarter"}


class English(SpokenLanguage):
    """English, as in the United States."""

    code = "en"
    decimal, thousands = ".", ","
    day_first, date_signs = False, "/"
    point, minus, plus, to, number_sign, percent = "point", "minus", "plus", "to", "number", "percent"
    signs = {".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", ":": "colon"}
    money = {
        "$": _DOLLAR,
        "US$": Money({"one": "US dollar", "other": "US dollars"}, {"one": "cent", "other": "cents"}),
        "USD": Money({"one": "US dollar", "other": "US dollars"}, {"one": "cent", "other": "cents"}),
        "€": _EURO,
        "EUR": _EURO,
        "£": _POUND,
        "GBP": Money({"one": "British pound", "other": "British pounds"}, {"one": "penny", "other": "pence"}),
        "¥": _YEN,
        "JPY": _YEN,
        "CHF": Money({"one": "Swiss franc", "other": "Swiss francs"}, {"one": "centime", "other": "centimes"}),
    }
    and_cents = " and "
    abbreviations = {
        "Mr.": "Mister",
        "Mrs.": "Missus",
        "Ms.": "Miz",
        "Prof.": "Professor",
        "Jr.": "Junior",
        "Sr.": "Senior",
        "vs.": "versus",
        "etc.": "et cetera",
        "e.g.": "for example",
        "i.e.": "that is",
        "approx.": "approximately",
        "Gen.": "General",
        "Capt.": "Captain",
        "Ave.": "Avenue",
        "Blvd.": "Boulevard",
        "Inc.": "Incorporated",
        "Ltd.": "Limited",
        "Corp.": "Corporation",
        "dept.": "department",
    }
    before_numbers = {
        "No.": "Number",
        "no.": "number",
        "Nos.": "Numbers",
        "p.": "page",
        "pp.": "pages",
        "vol.": "volume",
    }
    closing = frozenset({"etc.", "Inc.", "Ltd.", "Corp.", "Jr.", "Sr.", "Ave.", "Blvd."})
    scales = {
        "thousand": "thousand",
        "million": "million",
        "billion": "billion",
        "trillion": "trillion",
        "k": "thousand",
        "K": "thousand",
        "M": "million",
        "bn": "billion",
        "B": "billion",
    }
    months_begin = True
    own_beginnings = frozenset({"st.", "dr."})
    joining_words = frozenset({"am", "pm", "a.m", "p.m", "o'clock", "bc", "ad"})
    halves = {(1, 2): "one half", (1, 4): "one quarter", (3, 4): "three quarters"}

    @cached_property
    def month_numbers(self) -> Mapping[str, int]:
        """CLDR's months, and the usual abbreviation of September."""
        return {**super().month_numbers, "sept": 9}

    def year(self, year: int) -> str:
        if 2000 <= year <= 2009 or year % 1000 == 0:
            return self.cardinal(year).replace(" and ", " ")
        high, low = divmod(year, 100)
        if low == 0:
            return f"{self.cardinal(high)} hundred"
        return f"{self.cardinal(high)} {'oh ' if low < 10 else ''}{self.cardinal(low)}"

    def is_year(self, number: str) -> bool:
        return len(number) == 4 and number.isdigit() and 1100 <= int(number) <= 2199

    def digits(self, digits: str) -> str:
        return " ".join("oh" if digit == "0" and len(digits) > 1 else self.cardinal(int(digit)) for digit in digits)

    def decimals(self, digits: str) -> str:
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said += f" {self.ordinal(day)}"
        if year is None:
            return said
        return f"{said}, {self.year(year)}" if day is not None else f"{said} {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = self.cardinal(hour)
        if minute:
            said += f" {'oh ' if minute < 10 else ''}{self.cardinal(minute)}"
        elif hour > 12 or hour == 0:
            said += " hundred"
        else:
            said += " o'clock"
        return said if second is None else f"{said} and {self.cardinal(second)} seconds"

    def fraction(self, over: int, under: int) -> str | None:
        if not 1 <= over < under <= 100:
            return None
        name = _UNDER.get(under) or self.ordinal(under)
        plural = "halves" if under == 2 else f"{name}s"
        return f"{self.cardinal(over)} {name if over == 1 else plural}"

    def pair(self, first: int, second: int) -> str:
        if first == second == 10:
            return "ten out of ten"
        return super().pair(first, second)

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} and {fraction.replace('one ', 'a ', 1) if fraction.startswith('one ') else fraction}"

    def rules(self) -> Iterator[Rule]:
        yield re.compile(r"(?P<word>St|Dr)\.(?= ?[A-Z])"), lambda match: {"St": "Saint", "Dr": "Doctor"}[match["word"]]
        yield re.compile(r"(?P<word>St|Dr)\.(?! ?\d)"), self._street
        yield re.compile(r"(?<![\w.])\.(?P<rest>\d+)(?![\d.])"), lambda match: f"point {self.decimals(match['rest'])}"
        yield re.compile(r"(?P<number>\d{1,4})x(?!\w)"), lambda match: f"{self.cardinal(int(match['number']))} times"
        day, year = r"(?P<day>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?", r"(?P<year>[12]\d{3})(?!\d)"
        yield re.compile(rf"(?P<month>{self.month_pattern})\.? {day}(?![\w:/]|\.\d)(?:,? {year})?", re.I), self._month
        yield re.compile(rf"{day} (?P<month>{self.month_pattern})(?![^\W_])\.?(?:,? {year})?", re.I), self._month
        yield re.compile(rf"(?P<month>{self.month_pattern})\.? (?P<day>(?!)x)?{year}", re.I), self._month
        yield (
            re.compile(r"(?P<hour>1[0-2]|0?[1-9])(?::(?P<minute>[0-5]\d))? ?(?P<half>[ap])\.?m\b(?P<dot>\.)?", re.I),
            self._half_day,
        )
        yield (
            re.compile(r"(?P<hour>1[0-2]|[1-9]) o'clock"),
            lambda match: f"{self.cardinal(int(match['hour']))} o'clock",
        )
        yield re.compile(r"(?P<number>\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)(?![^\W_])"), self._ordinal
        yield re.compile(r"(?P<lead>['’]?)(?P<decade>(?:[12]\d)?\d0)s(?![^\W_])"), self._decade

    def _month(self, match: re.Match[str]) -> str | None:
        month, day, year = self.month_numbers[match["month"].lower()], match["day"], match["year"]
        if month == 5 and match["month"][0] == "m":  # "may" is another word
            return None
        said = self.date(None if day is None else int(day), month, None if year is None else int(year))
        return said + self.stop(match)

    def _street(self, match: re.Match[str]) -> str:
        return {"St": "Street", "Dr": "Drive"}[match["word"]] + self.stop(match)

    def _half_day(self, match: re.Match[str]) -> str:
        hour, minute = self.cardinal(int(match["hour"])), int(match["minute"] or 0)
        said = hour if not minute else f"{hour} {'oh ' if minute < 10 else ''}{self.cardinal(minute)}"
        return f"{said} {match['half'].upper()} M{self.stop(match)}"

    def _ordinal(self, match: re.Match[str]) -> str:
        return self.ordinal(int(match["number"].replace(",", ""))).replace(",", "")

    def _decade(self, match: re.Match[str]) -> str:
        decade = match["decade"]
        said = self.year(int(decade)) if len(decade) == 4 else self.cardinal(int(decade))
        return f"{said[:-1]}ies" if said.endswith("y") else f"{said}s"

"""The words of a language: its numbers, units, currencies and abbreviations, and how it says dates and times."""

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import ClassVar

from megatalker.prompt.rewriting.normalisation.units import UNITS

__all__ = ["MOST_DIGITS", "Forms", "LanguageWords", "Money", "form"]

Forms = Mapping[str, str]
"""A noun by plural category of Unicode's CLDR: ``one``, ``few``, ``many``, ``other``."""

MOST_DIGITS = 15
"""Longer numbers are read digit by digit."""
MOST_DECIMALS = 6
"""Further decimals do not change a plural."""


class Money:
    """Names of a currency.

    Args:
        unit: the currency's name.
        cent: the name of a hundredth; none where nobody says one.
        gender: of the unit: ``m``, ``f`` or ``n``.
        cent_gender: of the hundredth.
    """

    def __init__(self, unit: Forms, cent: Forms | None = None, gender: str = "m", cent_gender: str = "m") -> None:
        self.unit, self.cent, self.gender, self.cent_gender = unit, cent, gender, cent_gender


class LanguageWords:
    """The words of a language, and how they are put together. Immutable once it is made."""

    code: ClassVar[str]
    """ISO 639-1, for num2words and Babel."""
    numbers: ClassVar[str] = ""
    """Its code in num2words, where that is another one."""
    decimal: ClassVar[str] = ","
    """Mark in front of decimals."""
    decimal_pairs: ClassVar[bool] = False
    """One or two decimals are read as one number, unless a zero leads them."""
    thousands: ClassVar[str] = "."
    """Marks between thousands, besides the space."""
    day_first: ClassVar[bool] = True
    """Order of dates in figures."""
    date_signs: ClassVar[str] = "./"
    """Signs between the figures of a date."""
    point: ClassVar[str]
    minus: ClassVar[str]
    plus: ClassVar[str]
    to: ClassVar[str]
    """Between the ends of a range."""
    number_sign: ClassVar[str]
    """For ``#`` in front of a number."""
    signs: ClassVar[Mapping[str, str]]
    """Names of the signs of addresses: ``. @ / - _ :``."""
    percent: ClassVar[str]
    money: ClassVar[Mapping[str, Money]]
    """By sign or code, such as ``$`` and ``USD``."""
    abbreviations: ClassVar[Mapping[str, str]] = {}
    """Abbreviations by how they are written; found in this case only."""
    before_numbers: ClassVar[Mapping[str, str]] = {}
    """Abbreviations in front of a number only."""
    closing: ClassVar[frozenset[str]] = frozenset()
    """Abbreviations that may end a sentence, so that their full stop is kept in front of a capital."""
    scales: ClassVar[Mapping[str, str]] = {}
    """Words for large numbers that may stand between an amount and its currency, by how they are written."""
    counters: ClassVar[str] = ""
    """Characters that may follow a number without a space, in languages that write so."""
    space: ClassVar[str] = " "
    """Between the words of this language."""
    halves: ClassVar[Mapping[tuple[int, int], str]] = {}
    """Fractions with a name of their own."""

    # ---- words, by num2words and Babel unless the language has better ones

    units: ClassVar[Mapping[str, str]] = UNITS
    """Names of units by symbol."""

    @cached_property
    def months(self) -> tuple[str, ...]:
        """Names of the months."""
        from babel.dates import get_month_names

        names = get_month_names("wide", locale=self.code)
        return tuple(names[month] for month in range(1, 13))

    @cached_property
    def month_numbers(self) -> Mapping[str, int]:
        """Numbers of months by folded name or abbreviation, without a full stop."""
        from babel.dates import get_month_names

        found: dict[str, int] = {}
        for width in ("wide", "abbreviated"):
            for context in ("format", "stand-alone"):
                for month, name in get_month_names(width, context=context, locale=self.code).items():
                    if not name[0].isdigit():
                        found.setdefault(name.lower().rstrip("."), month)
        return found

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return a whole number in words; with a gender as it stands before a noun."""
        from num2words import num2words

        words: str = num2words(number, lang=self.numbers or self.code)
        return words.replace(",", "") if not gender else self.agree(number, words.replace(",", ""), gender)

    def agree(self, number: int, words: str, gender: str) -> str:
        """Return the words of a number as they stand before a noun of this gender."""
        return words

    def ordinal(self, number: int, gender: str = "m") -> str:
        """Return an ordinal number in words."""
        from num2words import num2words

        words: str = num2words(number, lang=self.numbers or self.code, to="ordinal")
        return words

    def year(self, year: int) -> str:
        """Return a year in words."""
        return self.cardinal(year)

    def digits(self, digits: str) -> str:
        """Return digits one by one."""
        return self.space.join(self.cardinal(int(digit)) for digit in digits)

    def decimals(self, digits: str) -> str:
        """Return the digits behind the decimal mark."""
        paired = self.decimal_pairs and digits[0] != "0" and len(digits) <= 2
        return self.cardinal(int(digits)) if paired else self.digits(digits)

    def plural(self, number: str) -> str:
        """Return the plural category of CLDR for a number as text with a decimal point."""
        return _plural(self.code, number)

    def unit(self, name: str, number: str, words: str) -> str:
        """Return a number with its unit.

        Args:
            name: of the unit, as Babel has it.
            number: as text with a decimal point.
            words: the number in words.
        """
        return _unit(self.code, name, number).replace("\0", words, 1)

    def unit_gender(self, name: str) -> str:
        """Return the gender of a unit's name."""
        return "f" if name in self.feminine_units else "m"

    feminine_units: ClassVar[frozenset[str]] = frozenset()

    # ---- sentences

    def date(self, day: int | None, month: int, year: int | None) -> str:
        """Return a date; at least a day or a year comes with the month."""
        raise NotImplementedError

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of the day."""
        raise NotImplementedError

    def fraction(self, over: int, under: int) -> str | None:
        """Return a fraction; ``None``: it is none that has a name."""
        return self.halves.get((over, under))

    months_begin: ClassVar[bool] = False
    """A month may stand before its day."""
    own_beginnings: ClassVar[frozenset[str]] = frozenset()
    """Further words that begin a group: abbreviations that :meth:`rules` read."""
    joining_words: ClassVar[frozenset[str]] = frozenset()
    """Further words that continue a group, such as ``p.m.``."""

    def spell(self, number: str, gender: str = "") -> str:
        """Return a number in words, as it is written: with marks between thousands, and the language's decimal mark."""
        whole, mark, rest = number.partition(self.decimal)
        figures = re.sub(r"\D", "", whole)
        if len(figures) > MOST_DIGITS or (len(figures) > 1 and figures[0] == "0" and not mark):
            words = self.digits(figures)
        else:
            words = self.cardinal(int(figures), "" if rest else gender)
        return words if not rest else self.space.join((words, self.point, self.decimals(rest)))

    def plain(self, number: str) -> str:
        """Return the number as Python writes it, for its plural; of a very long one, the end that decides it."""
        whole, mark, rest = number.partition(self.decimal)
        return re.sub(r"\D", "", whole)[-MOST_DIGITS:] + ("." + rest[:MOST_DECIMALS] if mark else "")

    noun_gender: ClassVar[str] = ""
    """The gender that is taken for that of a noun behind a number; "" where numbers do not change."""

    def is_year(self, number: str) -> bool:
        """Whether a number that stands alone is read as a year."""
        return False

    millions: ClassVar[tuple[str, ...]] = ()
    """Ends of numbers that a currency follows as it does "million"."""

    def scale(self, scale: str, number: str) -> str:
        """Return the word for a large number that is written like ``scale``, behind ``number``."""
        return self.scales[scale]

    def scaled(self, unit: str) -> str:
        """Return the name of a currency as it stands behind "million"."""
        return unit

    def cents(self, money: Money, whole: str, cents: str) -> str:
        """Return an amount with two decimals."""
        assert money.cent is not None
        parts = []
        number = self.plain(whole)
        if int(number) or not int(cents):
            parts.append(self.space.join((self.spell(whole, money.gender), form(money.unit, self.plural(number)))))
        if int(cents):
            unit = form(money.cent, self.plural(str(int(cents))))
            parts.append(self.space.join((self.cardinal(int(cents), money.cent_gender), unit)))
        return self.and_cents.join(parts)

    and_cents: ClassVar[str] = " "

    def percentage(self, number: str) -> str:
        """Return a percentage."""
        return self.space.join((self.spell(number), self.percent))

    def pair(self, first: int, second: int) -> str:
        """Return two numbers that a sign parts."""
        return f"{self.cardinal(first)} {self.cardinal(second)}"

    def mixed(self, whole: str, fraction: str) -> str:
        """Return a whole number with a fraction."""
        return self.space.join((whole, fraction))

    pause: ClassVar[str] = ", "
    """Between the groups of a phone number."""


def form(forms: Forms, category: str) -> str:
    """Return the form of a noun for a plural category."""
    return forms.get(category) or forms["other"]


@lru_cache(maxsize=4096)
def _plural(code: str, number: str) -> str:
    from decimal import Decimal

    from babel import Locale

    category: str = Locale(code).plural_form(Decimal(number))
    return category


@lru_cache(maxsize=4096)
def _unit(code: str, name: str, number: str) -> str:
    """Return Babel's pattern of a unit for this number, with NUL in the number's place."""
    from decimal import Decimal

    from babel.numbers import format_decimal
    from babel.units import format_unit

    value = Decimal(number)
    said: str = format_unit(value, name, length="long", locale=code)
    return said.replace(format_decimal(value, locale=code), "\0", 1).replace("\u00a0", " ")

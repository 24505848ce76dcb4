"""Italian."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_EURO = Money({"other": "euro"}, {"one": "centesimo", "other": "centesimi"})
_DOLLAR = Money({"one": "dollaro", "other": "dollari"}, {"one": "centesimo", "other": "centesimi"})


class Italian(SpokenLanguage):
    """Italian."""

    code = "it"
    date_signs = "/."
    point, minus, plus, to, number_sign, percent = "virgola", "meno", "più", "a", "numero", "per cento"
    signs = {".": "punto", "@": "chiocciola", "/": "barra", "-": "trattino", "_": "trattino basso", ":": "due punti"}
    money = {
        "€": _EURO,
        "EUR": _EURO,
        "$": _DOLLAR,
        "USD": Money({"one": "dollaro statunitense", "other": "dollari statunitensi"}, {"other": "centesimi"}),
        "£": Money({"one": "sterlina", "other": "sterline"}, {"one": "penny", "other": "pence"}, "f"),
        "¥": Money({"other": "yen"}),
    }
    and_cents = " e "
    abbreviations = {
        "Sig.": "Signor",
        "Sig.ra": "Signora",
        "Sig.na": "Signorina",
        "Dott.": "Dottor",
        "Dott.ssa": "Dottoressa",
        "Dr.": "Dottor",
        "Prof.": "Professor",
        "Prof.ssa": "Professoressa",
        "Ing.": "Ingegner",
        "Avv.": "Avvocato",
        "ecc.": "eccetera",
        "ad es.": "ad esempio",
        "tel.": "telefono",
        "S.p.A.": "società per azioni",
    }
    closing = frozenset({"ecc.", "S.p.A."})
    before_numbers = {"n.": "numero", "n°": "numero", "nº": "numero", "pag.": "pagina", "p.": "pagina", "ca.": "circa"}
    scales = {
        "milione": "milione",
        "milioni": "milioni",
        "miliardo": "miliardo",
        "miliardi": "miliardi",
        "mila": "mila",
    }
    joining_words = frozenset({"ore"})
    feminine_units = frozenset({"length-yard", "mass-pound", "mass-ounce", "duration-hour"})
    millions = ("milione", "milioni", "miliardo", "miliardi")
    noun_gender = "m"
    decimal_pairs = True
    halves = {(1, 2): "mezzo", (1, 3): "un terzo", (2, 3): "due terzi", (1, 4): "un quarto", (3, 4): "tre quarti"}

    def cardinal(self, number: int, gender: str = "") -> str:
        return super().cardinal(number, gender).replace(" e ", " ")

    def agree(self, number: int, words: str, gender: str) -> str:
        if number == 1:
            return "una" if gender == "f" else "un"
        return words

    def ordinal(self, number: int, gender: str = "m") -> str:
        words = super().ordinal(number)
        return words[:-1] + "a" if gender == "f" else words

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said = f"{'primo' if day == 1 else self.cardinal(day)} {said}"
        return said if year is None else f"{said} {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = self.cardinal(hour, "f") if hour == 1 else self.cardinal(hour)
        if minute:
            said += f" e {self.cardinal(minute)}"
        return said if second is None else f"{said} e {self.cardinal(second)} secondi"

    def scaled(self, unit: str) -> str:
        return f"di {unit}"

    def fraction(self, over: int, under: int) -> str | None:
        if (over, under) in self.halves or not 1 <= over < under <= 20:
            return self.halves.get((over, under))
        name = self.ordinal(under)
        return f"{self.cardinal(over, 'm')} {name if over == 1 else name[:-1] + 'i'}"

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} e {fraction}"

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY + rf"(?:º|°)? (?P<month>{self.month_pattern})(?![^\W_])\.?(?: (?P<year>[12]\d{{3}})(?!\d))?",
                re.I,
            ),
            self._month,
        )
        yield re.compile(r"(?P<number>\d{1,4})(?P<ending>[ºª])"), self._ordinal

    def _ordinal(self, match: re.Match[str]) -> str:
        return self.ordinal(int(match["number"]), "f" if match["ending"] == "ª" else "m")

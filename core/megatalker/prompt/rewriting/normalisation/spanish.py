"""Spanish."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_EURO = Money({"one": "euro", "other": "euros"}, {"one": "céntimo", "other": "céntimos"})
_DOLLAR = Money({"one": "dólar", "other": "dólares"}, {"one": "centavo", "other": "centavos"})
_UNDER = {3: "tercio", 4: "cuarto", 11: "onceavo", 12: "doceavo"}


class Spanish(SpokenLanguage):
    """Spanish."""

    code = "es"
    date_signs = "/."
    point, minus, plus, to, number_sign, percent = "coma", "menos", "más", "a", "número", "por ciento"
    signs = {".": "punto", "@": "arroba", "/": "barra", "-": "guion", "_": "guion bajo", ":": "dos puntos"}
    money = {
        "€": _EURO,
        "EUR": _EURO,
        "$": _DOLLAR,
        "USD": Money(
            {"one": "dólar estadounidense", "other": "dólares estadounidenses"}, {"one": "centavo", "other": "centavos"}
        ),
        "£": Money({"one": "libra", "other": "libras"}, {"one": "penique", "other": "peniques"}, "f"),
        "¥": Money({"one": "yen", "other": "yenes"}),
    }
    and_cents = " con "
    abbreviations = {
        "Sr.": "Señor",
        "Sra.": "Señora",
        "Srta.": "Señorita",
        "Dr.": "Doctor",
        "Dra.": "Doctora",
        "Dña.": "Doña",
        "Ud.": "usted",
        "Uds.": "ustedes",
        "etc.": "etcétera",
        "p. ej.": "por ejemplo",
        "tel.": "teléfono",
        "Avda.": "Avenida",
        "aprox.": "aproximadamente",
        "EE. UU.": "Estados Unidos",
    }
    closing = frozenset({"etc.", "EE. UU."})
    before_numbers = {
        "núm.": "número",
        "n.º": "número",
        "nº": "número",
        "n°": "número",
        "pág.": "página",
        "p.": "página",
    }
    scales = {"millón": "millón", "millones": "millones", "mil": "mil"}
    joining_words = frozenset({"ej", "uu", "de", "del", "horas", "h", "a.m", "p.m"})
    feminine_units = frozenset({"length-mile", "length-yard", "mass-pound", "mass-ounce", "duration-hour"})
    millions = ("millón", "millones")
    noun_gender = "m"
    decimal_pairs = True
    halves = {
        (1, 2): "medio",
        (1, 3): "un tercio",
        (2, 3): "dos tercios",
        (1, 4): "un cuarto",
        (3, 4): "tres cuartos",
    }

    def agree(self, number: int, words: str, gender: str) -> str:
        if gender == "f":
            words = re.sub(r"cientos\b", "cientas", words).replace("quinientos", "quinientas")
            return words[:-1] + "a" if words.endswith("uno") else words
        if words.endswith("veintiuno"):
            return words[:-3] + "ún"
        return words[:-1] if words.endswith("uno") else words

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said = f"{'primero' if day == 1 else self.cardinal(day)} de {said}"
        return said if year is None else f"{said} de {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = self.cardinal(hour, "f")
        if minute:
            said += f" y {self.cardinal(minute)}"
        elif hour != 1:
            said += " en punto"
        return said if second is None else f"{said} y {self.cardinal(second)} segundos"

    def scaled(self, unit: str) -> str:
        return f"de {unit}"

    def fraction(self, over: int, under: int) -> str | None:
        if (over, under) in self.halves or not 1 <= over < under <= 12:
            return self.halves.get((over, under))
        name = _UNDER.get(under) or self.ordinal(under)
        return f"{self.cardinal(over, 'm')} {name}{'s' if over > 1 else ''}"

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} y {fraction}"

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY
                + rf"(?:º|°)? de (?P<month>{self.month_pattern})(?![^\W_])\.?(?: del? (?P<year>[12]\d{{3}})(?!\d))?",
                re.I,
            ),
            self._month,
        )
        yield re.compile(r"(?P<number>\d{1,4})\.?(?P<ending>[ºª])"), self._ordinal

    def _ordinal(self, match: re.Match[str]) -> str:
        words = self.ordinal(int(match["number"]))
        return words if match["ending"] != "ª" else " ".join(word[:-1] + "a" for word in words.split())

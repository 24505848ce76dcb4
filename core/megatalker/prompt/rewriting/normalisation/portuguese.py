"""Portuguese, as it is written and read in Brazil where Portugal differs."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_EURO = Money({"one": "euro", "other": "euros"}, {"one": "centavo", "other": "centavos"})
_REAL = Money({"one": "real", "other": "reais"}, {"one": "centavo", "other": "centavos"})
_DOLLAR = Money({"one": "dólar", "other": "dólares"}, {"one": "centavo", "other": "centavos"})
_UNDER = {2: "meio", 3: "terço"}


class Portuguese(SpokenLanguage):
    """Portuguese."""

    code, numbers = "pt", "pt_BR"
    date_signs = "/."
    point, minus, plus, to, number_sign, percent = "vírgula", "menos", "mais", "a", "número", "por cento"
    signs = {".": "ponto", "@": "arroba", "/": "barra", "-": "hífen", "_": "sublinhado", ":": "dois pontos"}
    money = {
        "R$": _REAL,
        "BRL": _REAL,
        "€": _EURO,
        "EUR": _EURO,
        "US$": Money(
            {"one": "dólar americano", "other": "dólares americanos"}, {"one": "centavo", "other": "centavos"}
        ),
        "$": _DOLLAR,
        "£": Money({"one": "libra", "other": "libras"}, {"other": "pence"}, "f"),
        "¥": Money({"one": "iene", "other": "ienes"}),
    }
    and_cents = " e "
    abbreviations = {
        "Sr.": "Senhor",
        "Sra.": "Senhora",
        "Dr.": "Doutor",
        "Dra.": "Doutora",
        "Prof.": "Professor",
        "Profa.": "Professora",
        "etc.": "etcétera",
        "p. ex.": "por exemplo",
        "tel.": "telefone",
        "Av.": "Avenida",
        "Ltda.": "Limitada",
        "aprox.": "aproximadamente",
    }
    closing = frozenset({"etc.", "Ltda."})
    before_numbers = {"nº": "número", "n.º": "número", "n°": "número", "pág.": "página", "p.": "página"}
    scales = {"milhão": "milhão", "milhões": "milhões", "bilhão": "bilhão", "bilhões": "bilhões", "mil": "mil"}
    joining_words = frozenset({"ex", "de", "horas", "h"})
    feminine_units = frozenset({"length-mile", "length-yard", "mass-pound", "mass-ounce", "duration-hour"})
    millions = ("milhão", "milhões", "bilhão", "bilhões")
    decimal_pairs = True
    halves = {(1, 2): "meio", (1, 3): "um terço", (2, 3): "dois terços", (1, 4): "um quarto", (3, 4): "três quartos"}

    def agree(self, number: int, words: str, gender: str) -> str:
        if gender != "f":
            return words
        words = re.sub(r"entos\b", "entas", words)
        return re.sub(r"\bdois$", "duas", re.sub(r"\bum$", "uma", words))

    def ordinal(self, number: int, gender: str = "m") -> str:
        words = super().ordinal(number)
        return words if gender == "m" else " ".join(word[:-1] + "a" for word in words.split())

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said = f"{'primeiro' if day == 1 else self.cardinal(day)} de {said}"
        return said if year is None else f"{said} de {self.year(year)}"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = f"{self.cardinal(hour, 'f')} hora{'s' if hour > 1 else ''}"
        if minute:
            said += f" e {self.cardinal(minute)}"
        return said if second is None else f"{said} e {self.cardinal(second)} segundos"

    def scaled(self, unit: str) -> str:
        return f"de {unit}"

    def fraction(self, over: int, under: int) -> str | None:
        if (over, under) in self.halves or not 1 <= over < under <= 10:
            return self.halves.get((over, under))
        name = _UNDER.get(under) or self.ordinal(under)
        return f"{self.cardinal(over)} {name}{'s' if over > 1 else ''}"

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} e {fraction}"

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY + rf"(?:º|°)? de (?P<month>{self.month_pattern})(?![^\W_])\.?(?: de (?P<year>[12]\d{{3}})(?!\d))?",
                re.I,
            ),
            self._month,
        )
        yield (
            re.compile(r"(?P<hour>2[0-4]|[01]?\d)h(?P<minute>[0-5]\d)?(?!\w)"),
            lambda match: self.time(int(match["hour"]), int(match["minute"] or 0), None),
        )
        yield re.compile(r"(?P<number>\d{1,4})\.?(?P<ending>[ºª])"), self._ordinal

    def _ordinal(self, match: re.Match[str]) -> str:
        return self.ordinal(int(match["number"]), "f" if match["ending"] == "ª" else "m")

"""Russian. Numbers stand in the nominative, since what they depend on is not looked at."""

import re
from collections.abc import Iterator

from megatalker.prompt.rewriting.normalisation.language import DAY, Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.units import UNITS
from megatalker.prompt.rewriting.normalisation.words import MOST_DIGITS, Money

_ROUBLE = Money(
    {"one": "рубль", "few": "рубля", "many": "рублей", "other": "рубля"},
    {"one": "копейка", "few": "копейки", "many": "копеек", "other": "копейки"},
    "m",
    "f",
)
_CENT = {"one": "цент", "few": "цента", "many": "центов", "other": "цента"}
_DOLLAR = Money({"one": "доллар", "few": "доллара", "many": "долларов", "other": "доллара"}, _CENT)
_EURO = Money({"other": "евро"}, _CENT)


class Russian(SpokenLanguage):
    """Russian; what numbers depend on is not looked at, so that they stand in the nominative."""

    code = "ru"
    thousands = ""
    date_signs = "."
    point, minus, plus, to, number_sign, percent = "запятая", "минус", "плюс", "тире", "номер", "процентов"
    signs = {".": "точка", "@": "собака", "/": "слэш", "-": "дефис", "_": "подчёркивание", ":": "двоеточие"}
    money = {
        "₽": _ROUBLE,
        "руб.": _ROUBLE,
        "руб": _ROUBLE,
        "RUB": _ROUBLE,
        "$": _DOLLAR,
        "USD": _DOLLAR,
        "€": _EURO,
        "EUR": _EURO,
        "£": Money({"one": "фунт", "few": "фунта", "many": "фунтов", "other": "фунта"}),
        "¥": Money({"one": "иена", "few": "иены", "many": "иен", "other": "иены"}, None, "f"),
    }
    abbreviations = {
        "т. е.": "то есть",
        "т.е.": "то есть",
        "т. д.": "так далее",
        "т.д.": "так далее",
        "т. п.": "тому подобное",
        "т.п.": "тому подобное",
        "т. к.": "так как",
        "т.к.": "так как",
        "др.": "другие",
        "ул.": "улица",
        "пр.": "проспект",
        "гр.": "гражданин",
        "им.": "имени",
        "тел.": "телефон",
        "г-н": "господин",
        "г-жа": "госпожа",
        "проф.": "профессор",
        "напр.": "например",
    }
    closing = frozenset({"т. д.", "т.д.", "т. п.", "т.п.", "др."})
    before_numbers = {"№": "номер", "стр.": "страница", "п.": "пункт", "д.": "дом", "кв.": "квартира"}
    scales = {
        "тыс.": "тысяч",
        "тыс": "тысяч",
        "млн": "миллион",
        "млн.": "миллион",
        "млрд": "миллиард",
        "млрд.": "миллиард",
    }
    joining_words = frozenset({"е", "д", "п", "к", "г", "года", "год", "году", "й", "я"})
    feminine_units = frozenset(
        {"length-mile", "mass-ounce", "duration-minute", "duration-second", "duration-millisecond"}
    )
    units = UNITS | {
        "км": "length-kilometer",
        "м": "length-meter",
        "см": "length-centimeter",
        "мм": "length-millimeter",
        "кг": "mass-kilogram",
        "г": "mass-gram",
        "мг": "mass-milligram",
        "л": "volume-liter",
        "мл": "volume-milliliter",
        "км/ч": "speed-kilometer-per-hour",
        "м/с": "speed-meter-per-second",
        "ч": "duration-hour",
        "мин": "duration-minute",
        "с": "duration-second",
        "кВт": "power-kilowatt",
        "Вт": "power-watt",
        "ГБ": "digital-gigabyte",
        "МБ": "digital-megabyte",
        "Гц": "frequency-hertz",
        "м²": "area-square-meter",
    }
    halves = {(1, 2): "одна вторая", (1, 3): "одна третья", (1, 4): "одна четвёртая"}

    def agree(self, number: int, words: str, gender: str) -> str:
        if gender not in ("f", "n"):
            return words
        from num2words import num2words

        said: str = num2words(number, lang="ru", gender=gender)
        return said

    def ordinal(self, number: int, gender: str = "m") -> str:
        return self._declined(number, gender, "n")

    def _declined(self, number: int, gender: str, case: str, plural: bool = False) -> str:
        from num2words import num2words

        said: str = num2words(number, lang="ru", to="ordinal", gender=gender, case=case, plural=plural)
        return said

    def spell(self, number: str, gender: str = "") -> str:
        whole, mark, rest = number.partition(",")
        if not mark or len(rest) > 3 or len(whole) > MOST_DIGITS:
            return super().spell(number, gender)
        figures = int(re.sub(r"\D", "", whole))
        part = int(rest)
        name = ("десят", "сот", "тысячн")[len(rest) - 1]
        wholes = "целая" if figures % 10 == 1 and figures % 100 != 11 else "целых"
        parts = f"{name}ая" if part % 10 == 1 and part % 100 != 11 else f"{name}ых"
        return f"{self.cardinal(figures, 'f')} {wholes} {self.cardinal(part, 'f')} {parts}"

    def percentage(self, number: str) -> str:
        forms = {"one": "процент", "few": "процента", "many": "процентов", "other": "процента"}
        return f"{self.spell(number)} {forms[self.plural(self.plain(number))]}"

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = self.months[month - 1]
        if day is not None:
            said = f"{self.ordinal(day, 'n')} {said}"
        return said if year is None else f"{said} {self._declined(year, 'm', 'g')} года"

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = f"{self.cardinal(hour)} {self._form(hour, 'час', 'часа', 'часов')}"
        if minute:
            said += f" {self.cardinal(minute, 'f')} {self._form(minute, 'минута', 'минуты', 'минут')}"
        if second:
            said += f" {self.cardinal(second, 'f')} {self._form(second, 'секунда', 'секунды', 'секунд')}"
        return said

    def _form(self, number: int, one: str, few: str, many: str) -> str:
        return {"one": one, "few": few}.get(self.plural(str(number)), many)

    def scale(self, scale: str, number: str) -> str:
        category, word = self.plural(number), self.scales[scale]
        if word == "тысяч":
            return {"one": "тысяча", "many": "тысяч"}.get(category, "тысячи")
        return word + {"one": "", "many": "ов"}.get(category, "а")

    def _scaled_number(self, match: re.Match[str]) -> str:
        number, scale = match["number"], match["scale"]
        words = self.spell(number, "f" if scale.startswith("тыс") else "m")
        return f"{words} {self.scale(scale, self.plain(number))}"

    def fraction(self, over: int, under: int) -> str | None:
        if not 1 <= over < under <= 100:
            return None
        name = self._declined(under, "f", "n") if over == 1 else self._declined(under, "f", "g", plural=True)
        return f"{self.cardinal(over, 'f')} {name}"

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole} и {fraction}"

    def _range(self, match: re.Match[str]) -> str:
        return super()._range(match).replace(" тире ", " — ", 1)

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(
                DAY + rf" (?P<month>{self.month_pattern})(?![^\W_])\.?"
                r"(?: (?P<year>[12]\d{3})(?!\d)(?: (?:года|г\.?)(?![^\W_]))?)?",
                re.I,
            ),
            self._month,
        )
        yield (
            re.compile(rf"(?P<number>{self._number}) (?P<scale>тыс|млн|млрд)\.?(?! ?(?:руб|[₽$€]))(?![^\W_])"),
            self._scaled_number,
        )
        yield re.compile(r"(?P<year>[12]\d{3}) ?(?P<word>год|года|году|г\.)(?![^\W_])"), self._year_word
        yield re.compile(r"(?P<number>\d{1,4})-(?P<ending>ый|ой|ая|ое|й|я|е|го|му|м)(?![^\W_])"), self._ordinal

    def _year_word(self, match: re.Match[str]) -> str:
        case = {"год": "n", "г.": "n", "года": "g", "году": "p"}[match["word"]]
        word = "год" if match["word"] == "г." else match["word"]
        return f"{self._declined(int(match['year']), 'm', case)} {word}{self.stop(match)}"

    def _ordinal(self, match: re.Match[str]) -> str:
        ending = match["ending"]
        gender = "f" if ending in ("я", "ая") else "n" if ending in ("е", "ое") else "m"
        case = {"го": "g", "му": "d", "м": "p"}.get(ending, "n")
        return self._declined(int(match["number"]), gender, case)

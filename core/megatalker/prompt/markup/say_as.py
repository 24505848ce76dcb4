"""The words that ``<say-as>`` reads, by the numbers, dates and signs of the normaliser."""

import re
from itertools import pairwise

from megatalker.errors import InvalidRequestError
from megatalker.prompt.languages import name_of
from megatalker.prompt.rewriting.normalisation import normaliser_of
from megatalker.prompt.rewriting.normalisation.language import SpokenLanguage

__all__ = ["KINDS", "SayAs"]

KINDS = (
    "characters",
    "spell-out",
    "digits",
    "cardinal",
    "number",
    "ordinal",
    "date",
    "time",
    "telephone",
    "currency",
    "fraction",
)
"""Values of ``interpret-as``."""

MOST_NUMBER_DIGITS = 15


class SayAs:
    """Writes out what a text says how to read.

    Args:
        language: of the text, by its name; ``None``: not known, so that letters tell, and digits alone are English.
    """

    def __init__(self, language: str | None) -> None:
        self._language = language

    def is_language(self, code: str) -> bool:
        """Whether the text may say that it is in this language, such as ``en-US``."""
        return self._language is None or name_of(code.strip()) == self._language

    def __call__(self, kind: str, form: str, text: str) -> str:
        """Return the words for a text.

        Args:
            kind: one of :data:`KINDS`.
            form: order of a date, such as ``mdy``, or nothing.
            text: with single spaces, stripped.

        Raises:
            InvalidRequestError: it is none of this kind.
            UnsupportedError: the extra ``text`` is not installed.
        """
        normaliser = normaliser_of(self._language)
        spoken = normaliser.spoken(text)
        said: str | None
        match kind:
            case "characters" | "spell-out":
                said = _characters(spoken, text)
            case "digits":
                said = _digits(spoken, text)
            case "cardinal" | "number":
                said = _cardinal(spoken, text)
            case "ordinal":
                said = _ordinal(spoken, text)
            case "date" if form:
                said = _date(spoken, form.lower(), text)
            case "telephone":
                said = _telephone(spoken, text)
            case "fraction" if (match := re.fullmatch(r"(\d{1,3}) ?/ ?(\d{1,3})", text)) is not None:
                said = spoken.fraction(int(match[1]), int(match[2])) or normaliser.write(text)
            case _:
                said = normaliser.write(text)
        if (
            said is None
            or not any(map(str.isalnum, text))
            or (kind not in ("characters", "spell-out") and said == text)
        ):
            raise InvalidRequestError(f"{text!r:.60} cannot be read as {kind}{f' {form!r:.20}' if form else ''}")
        return said


def _characters(spoken: SpokenLanguage, text: str) -> str:
    said = []
    for character in text:
        if character.isdecimal():
            said.append(spoken.digits(character))
        elif character.isalpha():
            said.append(character.upper() if character.lower().upper() == character.upper() else character)
        elif character in spoken.signs:
            said.append(spoken.signs[character])
    return " ".join(said)


def _digits(spoken: SpokenLanguage, text: str) -> str | None:
    groups = re.findall(r"\d+", text)
    if not groups or re.search(r"[^\W\d_]", text) is not None:
        return None
    return spoken.space.join(map(spoken.digits, groups))


def _cardinal(spoken: SpokenLanguage, text: str) -> str | None:
    marks = re.escape(spoken.thousands + spoken.decimal + " ")
    match = re.fullmatch(rf"([-\u2212+]?) ?(\d[\d{marks}]*)", text)
    if match is None or match[2].count(spoken.decimal) > 1 or not match[2][-1].isdigit():
        return None
    said = spoken.spell(match[2])
    sign = {"": "", "+": spoken.plus}.get(match[1], spoken.minus)
    return spoken.space.join((sign, said)) if sign else said


def _ordinal(spoken: SpokenLanguage, text: str) -> str | None:
    digits = re.sub(r"\D", "", text)
    if not digits or len(digits) > MOST_NUMBER_DIGITS or re.match(r"\d+(?:[\d,. ]*\d)?[^\d]{0,4}$", text) is None:
        return None
    return spoken.ordinal(int(digits)).replace(",", "")


def _date(spoken: SpokenLanguage, form: str, text: str) -> str | None:
    figures = re.findall(r"\d+", text)
    if re.fullmatch("[dmy]{1,3}", form) is None or len(set(form)) != len(form):
        return None
    if len(figures) == 1 and len(figures[0]) == len(text):  # 20240303
        widths = [4 if part == "y" else 2 for part in form]
        if len(form) > 1 and len(text) == sum(widths):
            ends = [sum(widths[:place]) for place in range(len(widths) + 1)]
            figures = [text[a:b] for a, b in pairwise(ends)]
    if len(figures) != len(form) or max(map(len, figures)) > 4 or re.search(r"[^\d./ -]", text) is not None:
        return None
    parts = dict(zip(form, map(int, figures), strict=True))
    day, month, year = parts.get("d"), parts.get("m"), parts.get("y")
    if year is not None and year < 100:
        year += 2000 if year < 70 else 1900
    if (day is not None and not 1 <= day <= 31) or (month is not None and not 1 <= month <= 12):
        return None
    if month is None:
        if year is not None:
            return spoken.year(year) if day is None else None
        return spoken.ordinal(day) if day is not None else None
    return spoken.months[month - 1] if day is None and year is None else spoken.date(day, month, year)


def _telephone(spoken: SpokenLanguage, text: str) -> str | None:
    groups = re.findall(r"\d+", text)
    if not groups or re.search(r"[^\d()+./ -]", text) is not None:
        return None
    said = spoken.pause.join(map(spoken.digits, groups))
    return spoken.space.join((spoken.plus, said)) if text.startswith("+") else said

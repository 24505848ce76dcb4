"""How numbers, dates, amounts and addresses are read, whatever the language; each language fills in its words."""

import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial

from megatalker.prompt.rewriting.grouping import Group, GroupVocabulary, is_address
from megatalker.prompt.rewriting.normalisation.words import LanguageWords, form
from megatalker.prompt.rewriting.scripts import is_wide

__all__ = ["DAY", "Rule", "SpokenLanguage"]

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])"
"""A day of the month."""
_ISO_DATE = re.compile(r"(?P<year>[12]\d{3})-(?P<month>\d\d)-(?P<day>\d\d)(?!\d|-\d)")
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+", re.A)
_ADDRESS = re.compile(r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w./~%+=&?#-]*)?", re.A)
_PHONE = re.compile(
    r"\+\d{1,3}(?:[ -]?\(?\d{1,5}\)?){1,6}(?![\d,])|\(\d{2,5}\) ?\d{2,5}(?:[ -]\d{2,5}){1,3}(?!\d)"
    r"|(?:1-)?\d{3}[-.]\d{3}[-.]\d{4}(?!\d)|0\d{1,5}[ /-]\d{3,}(?:[ -]\d{2,})*(?!\d)|\d{3}-\d{4}(?![\d-])"
    r"|0\d(?: \d\d){4}(?!\d)"
)
_TIME = re.compile(r"(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])")
_FRACTION = re.compile(r"(?P<whole>\d{1,3} )?(?P<over>\d{1,3})/(?P<under>\d{1,3})(?![\d/])")
_PAIR = re.compile(r"(?P<first>\d{1,4})[:/'’](?P<second>\d{1,4})(?![\d:/.,]\d|\d)")
_VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅛": (1, 8)}
_HASH = re.compile(r"#(?P<number>\d{1,9})(?!\w)")


class SpokenLanguage(LanguageWords):
    """A language that text is written out in: its words, and the rules that find what to write out."""

    def rules(self) -> Iterator[Rule]:
        """Rules of this language alone, which go before those of all."""
        yield from ()

    # ---- the machinery

    @cached_property
    def vocabulary(self) -> GroupVocabulary:
        """Words that groups of this language hold."""
        parts = [word.lower().split() for word in (*self.abbreviations, *self.before_numbers)]
        joining = {word.lower() for word in (*self.units, *self.scales, *self.money)} | self.joining_words
        return GroupVocabulary(
            frozenset(
                {first for first, *_ in parts}
                | self.own_beginnings
                | (set(self.month_numbers) if self.months_begin else set())
            ),
            frozenset(joining | set(self.month_numbers) | {part for _, *rest in parts for part in rest}),
            frozenset(self.counters),
        )

    def prepare(self) -> None:
        """Import and compile now what the first text would wait for: some tenths of a second."""
        self.unit(next(iter(self.units.values())), "1", self.cardinal(1))
        self.plural("1")
        assert self._rules

    def write(self, group: Group) -> str:
        """Return what to say for a group."""
        text, said, at = group.text + group.after, list[str](), 0
        size, before = len(group.text), group.before
        while at < size:
            found = self._written(text, at, size, before)
            if found is None:
                word = _WORD.match(text, at, size)
                end = at + 1 if word is None else word.end()
                said.append(_plain_sign(text, at, end, before))
            else:
                end, words = found
                if said and _touches(said[-1]) and self.space:
                    said.append(" ")
                said.append(words)
                if end < size and text[end].isalpha() and self.space and text[end] not in self.counters:
                    said.append(" ")
            before, at = text[end - 1], end
        return "".join(said)

    def _written(self, text: str, at: int, size: int, before: str) -> tuple[int, str] | None:
        character = text[at]
        if character == " " or (
            character.isalpha() and before.isalpha() and character not in self.counters and not is_wide(before)
        ):
            return None
        for pattern, words in self._rules:
            match = pattern.match(text, at)
            if match is not None and match.end() > size:  # it took the character behind the group, too
                match = pattern.match(text, at, size)
            if match is not None and at < match.end() <= size:
                if character in "-+" and before.isalnum() and not is_wide(before):
                    continue
                said = words(match)
                if said is not None:
                    return match.end(), said
        return None

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        number = self._number
        signs = "|".join(sorted(map(re.escape, self.money), key=len, reverse=True))
        scales = "|".join(sorted(map(re.escape, self.scales), key=len, reverse=True)) or r"(?!)"
        units = "|".join(sorted(map(re.escape, self.units), key=len, reverse=True))
        end = r"(?![^\W\d_])" if not self.counters else r"(?![A-Za-zÀ-ÿ])"
        rules: list[Rule] = [
            (_MAIL, lambda match: self._address(match.group())),
            (re.compile(r"(?:https?|ftp)://\S+|www\.\S+", re.I), self._url),
            (_ADDRESS, self._url),
            (self._abbreviation_pattern, self._abbreviation),
            *(
                (re.compile(re.escape(word) + r"(?= ?\d)"), partial(_constant, said))
                for word, said in self.before_numbers.items()
            ),
            *self.rules(),
            (_ISO_DATE, self._dated),
            (self._figure_date, self._dated),
            (_PHONE, self._phone),
            (
                self._version,
                lambda match: f"{self.space}{self.point}{self.space}".join(map(self.spell, match.group().split("."))),
            ),
            (_TIME, self._timed),
            (
                re.compile(rf"(?P<minus>[-−])?(?P<sign>{signs}) ?(?P<number>{number})(?: ?(?P<scale>{scales}){end})?"),
                self._amount,
            ),
            (
                re.compile(rf"(?P<minus>[-−])?(?P<number>{number}) ?(?:(?P<scale>{scales}) ?)?(?P<sign>{signs}){end}"),
                self._amount,
            ),
            (re.compile(rf"(?P<minus>[-−])?(?P<number>{number}) ?%"), self._percentage),
            (re.compile(rf"(?P<minus>[-−])?(?P<number>{number}) ?(?P<unit>{units}){end}"), self._measure),
            (_FRACTION, self._fraction),
            (_PAIR, self._pair),
            (re.compile("[½⅓⅔¼¾⅕⅛]"), lambda match: self.fraction(*_VULGAR[match.group()])),
            (
                re.compile(
                    rf"(?P<low>\d{{1,4}}) ?[-–] ?(?P<high>\d{{1,4}})(?![\d-]|[.,:]\d)"
                    rf"(?: ?(?:(?P<unit>{units}){end}|(?P<percent>%)))?"
                ),
                self._range,
            ),
            (_HASH, lambda match: self.space.join((self.number_sign, self.cardinal(int(match["number"]))))),
            (re.compile(rf"(?P<sign>[-−+])?(?P<number>{number})"), self._plain),
        ]
        return tuple(rules)

    @cached_property
    def _number(self) -> str:
        thousands = "[" + re.escape(self.thousands) + " ’']"
        return rf"(?:\d{{1,3}}(?:{thousands}\d{{3}})+(?!\d)|\d+)(?:{re.escape(self.decimal)}\d+)?"

    @cached_property
    def _version(self) -> re.Pattern[str]:
        grouped = r"(?!\d{1,3}(?:\.\d{3})+(?![\d.]))" if "." in self.thousands else ""
        return re.compile(grouped + r"\d+(?:\.\d+){2,}(?![\d,])")

    @cached_property
    def month_pattern(self) -> str:
        """Pattern of all names and abbreviations of months, without a full stop."""
        return "|".join(sorted(map(re.escape, self.month_numbers), key=len, reverse=True))

    @cached_property
    def _figure_date(self) -> re.Pattern[str]:
        day, month = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])"
        first, second = (day, month) if self.day_first else (month, day)
        signs = re.escape(self.date_signs)
        return re.compile(rf"{first}(?P<by>[{signs}]) ?{second}(?P=by) ?(?P<year>[12]\d{{3}}|\d\d)(?!\d|[.,/]\d)")

    @cached_property
    def _abbreviation_pattern(self) -> re.Pattern[str]:
        words = sorted(map(re.escape, self.abbreviations), key=len, reverse=True)
        return re.compile("(?:" + "|".join(words) + r")(?![^\W_])") if words else re.compile(r"(?!)")

    def _abbreviation(self, match: re.Match[str]) -> str:
        word = match.group()
        rest = match.string[match.end() :].strip()
        return self.abbreviations[word] + (self.stop(match) if not rest or word in self.closing else "")

    @staticmethod
    def stop(match: re.Match[str]) -> str:
        """Return the full stop of an abbreviation where it also ends a sentence, or nothing."""
        rest = match.string[match.end() :].strip()
        return "." if match.group().endswith(".") and (not rest or rest[0].isupper()) else ""

    def _signed(self, match: re.Match[str], words: str) -> str:
        return self.space.join((self.minus, words)) if match["minus"] else words

    def _plain(self, match: re.Match[str]) -> str:
        number, sign = match["number"], match["sign"]
        noun = re.match(r" [^\W\d_]", match.string[match.end() :]) is not None
        if not sign and self.is_year(number):
            words = self.year(int(number))
        else:
            words = self.spell(number, self.noun_gender if noun else "")
        return words if not sign else self.space.join((self.plus if sign == "+" else self.minus, words))

    def _amount(self, match: re.Match[str]) -> str:
        money, number, scale = self.money[match["sign"]], match["number"], match["scale"]
        whole, mark, rest = number.partition(self.decimal)
        if scale:
            unit = self.scaled(form(money.unit, "many"))
            words = self.space.join((self.spell(number), self.scale(scale, self.plain(number)), unit))
        elif mark and len(rest) == 2 and money.cent is not None:
            words = self.cents(money, whole, rest)
        else:
            said, unit = self.spell(number, money.gender), form(money.unit, self.plural(self.plain(number)))
            words = self.space.join((said, self.scaled(unit) if said.endswith(self.millions) else unit))
        return self._signed(match, words) + (self.stop(match) if match["sign"].endswith(".") else "")

    def _percentage(self, match: re.Match[str]) -> str:
        return self._signed(match, self.percentage(match["number"]))

    def _measure(self, match: re.Match[str]) -> str:
        name, number = self.units[match["unit"]], match["number"]
        words = self.spell(number, self.unit_gender(name))
        return self._signed(match, self.unit(name, self.plain(number), words))

    def _fraction(self, match: re.Match[str]) -> str | None:
        said = self.fraction(int(match["over"]), int(match["under"]))
        if said is None or not match["whole"]:
            return said
        return self.mixed(self.spell(match["whole"].strip()), said)

    def _pair(self, match: re.Match[str]) -> str:
        """Read a ratio, a score or a verse: two numbers, one after the other."""
        return self.pair(int(match["first"]), int(match["second"]))

    def _range(self, match: re.Match[str]) -> str:
        high = match["high"]
        if match["percent"]:
            last = self.percentage(high)
        elif match["unit"]:
            name = self.units[match["unit"]]
            last = self.unit(name, high, self.spell(high, self.unit_gender(name)))
        else:
            last = self._end(high)
        return self.space.join((self._end(match["low"]), self.to, last))

    def _end(self, number: str) -> str:
        return self.year(int(number)) if self.is_year(number) else self.spell(number)

    def _dated(self, match: re.Match[str]) -> str | None:
        year = int(match["year"])
        if len(match["year"]) == 2:
            year += 2000 if year < 70 else 1900
        day, month = int(match["day"]), int(match["month"])
        return self.date(day, month, year) if 1 <= month <= 12 and 1 <= day <= 31 else None

    def _month(self, match: re.Match[str]) -> str | None:
        """Return a date whose month is a word; for :meth:`rules`."""
        month = self.month_numbers[match["month"].lower()]
        said = self.date(int(match["day"]), month, None if match["year"] is None else int(match["year"]))
        return said + self.stop(match)

    def _timed(self, match: re.Match[str]) -> str:
        return self.time(
            int(match["hour"]), int(match["minute"]), None if match["second"] is None else int(match["second"])
        )

    def _phone(self, match: re.Match[str]) -> str:
        number = match.group()
        groups = [self.digits(group) for group in re.findall(r"\d+", number)]
        said = self.pause.join(groups)
        return self.space.join((self.plus, said)) if number.startswith("+") else said

    def _url(self, match: re.Match[str]) -> str | None:
        text = match.group()
        rest = re.sub(r"^(?:https?|ftp)://", "", text, flags=re.I)
        body = rest.rstrip(".,:;!?")
        host = body.partition("/")[0]
        if rest == text and not is_address(host):
            return None
        return self._address(body.rstrip("/")) + rest[len(body) :]

    def _address(self, text: str) -> str:
        """Return an address: its words as they are, its signs by their names."""
        said: list[str] = []
        body = text.rstrip(".")
        for part in re.findall(r"\d+|[^\W\d_]+|[\W_]", body):
            if part.isdigit():
                said.append(self.digits(part) if len(part) > 2 or part[0] == "0" else self.cardinal(int(part)))
            elif part.lower() == "www":
                said.append("w w w")
            elif part.isalpha():
                said.append(part)
            elif part in self.signs:
                said.append(self.signs[part])
        return " ".join(said) + text[len(body) :]


def _constant(said: str, match: re.Match[str]) -> str:  # noqa: ARG001 - the match of a rule
    return said


def _plain_sign(text: str, at: int, end: int, before: str) -> str:
    """Return what no rule reads, unchanged; a hyphen in front of a digit becomes a space, and a comma gets one."""
    followed = text[end : end + 1].isdigit()
    if followed and text[at] == "-" and before.isalpha() and not is_wide(before):  # COVID-19
        return " "
    return ", " if followed and text[at] == "," else text[at:end]


def _touches(said: str) -> bool:
    return said[-1:].isalpha()

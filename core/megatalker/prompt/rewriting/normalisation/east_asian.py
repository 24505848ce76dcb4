"""Chinese, Japanese and Korean, whose numbers count in ten thousands."""

import re
from collections.abc import Iterator
from typing import ClassVar

from megatalker.prompt.rewriting.normalisation.language import Rule, SpokenLanguage
from megatalker.prompt.rewriting.normalisation.words import Money

_KANJI = "零一二三四五六七八九"


class EastAsian(SpokenLanguage):
    """A language whose dates read year, month, day, and whose units stand behind the number as they are.

    In the name of a unit the number may stand in the middle, as ``{}``.
    """

    decimal, thousands = ".", ","
    day_first, date_signs = True, "."
    space = ""
    year_word: ClassVar[str]
    month_word: ClassVar[str]
    day_word: ClassVar[str]
    hour_word: ClassVar[str]
    minute_word: ClassVar[str]
    second_word: ClassVar[str]

    def date(self, day: int | None, month: int, year: int | None) -> str:
        said = "" if year is None else self.year(year) + self.year_word
        said += self.cardinal(month) + self.month_word
        return said if day is None else said + self.cardinal(day) + self.day_word

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = self.cardinal(hour) + self.hour_word
        if minute or second:
            said += self.cardinal(minute) + self.minute_word
        return said if second is None else said + self.cardinal(second) + self.second_word

    def unit(self, name: str, number: str, words: str) -> str:
        return name.format(words) if "{}" in name else words + name

    def cents(self, money: Money, whole: str, cents: str) -> str:
        return self.spell(f"{whole}.{cents}") + money.unit["other"]

    def rules(self) -> Iterator[Rule]:
        yield (
            re.compile(r"(?P<year>[12]\d{3})[/-](?P<month>1[0-2]|0?[1-9])[/-](?P<day>3[01]|[12]\d|0?[1-9])(?!\d)"),
            self._dated,
        )


class Chinese(EastAsian):
    """Chinese in the numerals of both ways to write it; simplified characters elsewhere."""

    code = "zh"
    point, minus, plus, to, number_sign, percent = "点", "负", "加", "到", "号", "百分之"
    signs = {".": "点", "@": "艾特", "/": "斜杠", "-": "杠", "_": "下划线", ":": "冒号"}
    pause = "，"
    year_word, month_word, day_word, hour_word, minute_word, second_word = "年", "月", "日", "点", "分", "秒"
    money = {
        "¥": Money({"other": "元"}),
        "￥": Money({"other": "元"}),
        "CNY": Money({"other": "元"}),
        "RMB": Money({"other": "元"}),
        "$": Money({"other": "美元"}),
        "USD": Money({"other": "美元"}),
        "€": Money({"other": "欧元"}),
        "EUR": Money({"other": "欧元"}),
        "£": Money({"other": "英镑"}),
        "HK$": Money({"other": "港元"}),
    }
    scales = {"万": "万", "亿": "亿", "百万": "百万", "千万": "千万"}
    counters = "年月日号点时分秒个只条张本位人元块角毛度第岁次名万亿百千公里米厘斤克两件天层楼台辆杯瓶页章届半"
    units = {
        "km": "公里", "m": "米", "cm": "厘米", "mm": "毫米", "kg": "公斤", "g": "克", "mg": "毫克", "l": "升",
        "L": "升", "ml": "毫升", "mL": "毫升", "km/h": "每小时{}公里", "m/s": "每秒{}米", "°C": "{}摄氏度",
        "℃": "{}摄氏度", "°F": "{}华氏度", "°": "度", "GB": "GB", "MB": "MB", "Hz": "赫兹", "kHz": "千赫", "W": "瓦",
        "kW": "千瓦", "kWh": "千瓦时", "V": "伏", "m²": "平方米", "km²": "平方公里", "min": "分钟", "h": "小时",
        "s": "秒", "mi": "英里", "ft": "英尺", "lb": "磅",
    }  # fmt: skip
    _twos = "个只条张本位人块件天层台辆杯瓶次名年点岁公米斤"
    """Counters in front of which two is 两."""

    def cardinal(self, number: int, gender: str = "") -> str:
        if number < 0:
            return self.minus + self.cardinal(-number)
        if number == 0:
            return _KANJI[0]
        groups, scales = [], ("", "万", "亿", "万亿")
        while number:
            number, group = divmod(number, 10_000)
            groups.append(group)
        said, gap = "", False
        for index in range(len(groups) - 1, -1, -1):
            group = groups[index]
            if not group:
                gap = gap or bool(said)
                continue
            if said and (gap or group < 1000):
                said += _KANJI[0]
            said, gap = said + _under_ten_thousand(group) + scales[index], False
        return said.removeprefix("一") if said.startswith("一十") else said

    def ordinal(self, number: int, gender: str = "m") -> str:
        return f"第{self.cardinal(number)}"

    def digits(self, digits: str) -> str:
        return "".join(_KANJI[int(digit)] for digit in digits)

    def year(self, year: int) -> str:
        return self.digits(str(year))

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = ("两" if hour == 2 else self.cardinal(hour)) + "点"
        if minute or second:
            said += ("零" if minute < 10 else "") + (self.cardinal(minute) if minute else "") + "分"
        return said if second is None else said + self.cardinal(second) + "秒"

    def percentage(self, number: str) -> str:
        return self.percent + self.spell(number)

    def fraction(self, over: int, under: int) -> str | None:
        return f"{self.cardinal(under)}分之{self.cardinal(over)}" if 1 <= over < under else None

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole}又{fraction}"

    def _phone(self, match: re.Match[str]) -> str:
        return super()._phone(match).replace("一", "幺")

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        yield re.compile(r"1[3-9]\d{9}(?!\d)"), lambda match: self.digits(match.group()).replace("一", "幺")
        yield re.compile(r"(?P<year>\d{4})(?=年)"), lambda match: self.digits(match["year"])
        yield re.compile(rf"2(?=[{self._twos}])(?!点\d)(?!月)"), lambda _: "两"
        yield re.compile(r"(?P<number>\d+(?:\.\d+)?)(?=[万亿])"), lambda match: self.spell(match["number"])


def _under_ten_thousand(number: int) -> str:
    said, gap = "", False
    for scale, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, number = divmod(number, scale)
        if not digit:
            gap = gap or bool(said)
            continue
        said += ("零" if gap else "") + _KANJI[digit] + name
        gap = False
    return said


class Japanese(EastAsian):
    """Japanese."""

    code = "ja"
    point, minus, plus, to, number_sign, percent = "点", "マイナス", "プラス", "から", "ナンバー", "パーセント"
    signs = {".": "ドット", "@": "アットマーク", "/": "スラッシュ", "-": "ハイフン", "_": "アンダーバー", ":": "コロン"}
    pause = "の"
    year_word, month_word, day_word, hour_word, minute_word, second_word = "年", "月", "日", "時", "分", "秒"
    money = {
        "¥": Money({"other": "円"}),
        "￥": Money({"other": "円"}),
        "JPY": Money({"other": "円"}),
        "$": Money({"other": "ドル"}),
        "USD": Money({"other": "米ドル"}),
        "€": Money({"other": "ユーロ"}),
        "EUR": Money({"other": "ユーロ"}),
        "£": Money({"other": "ポンド"}),
    }
    counters = "年月日時分秒円人個本枚匹回台冊歳才階番度杯件名点万億百千週間"
    units = {
        "km": "キロメートル", "m": "メートル", "cm": "センチメートル", "mm": "ミリメートル", "kg": "キログラム",
        "g": "グラム", "mg": "ミリグラム", "l": "リットル", "L": "リットル", "ml": "ミリリットル",
        "mL": "ミリリットル", "km/h": "時速{}キロメートル", "m/s": "秒速{}メートル", "°C": "{}度", "℃": "{}度",
        "°": "度", "GB": "ギガバイト", "MB": "メガバイト", "Hz": "ヘルツ", "kHz": "キロヘルツ", "W": "ワット",
        "kW": "キロワット", "kWh": "キロワット時", "V": "ボルト", "m²": "平方メートル", "km²": "平方キロメートル",
        "min": "分", "h": "時間", "s": "秒", "mi": "マイル", "ft": "フィート", "lb": "ポンド",
    }  # fmt: skip

    def digits(self, digits: str) -> str:
        return "".join("ゼロ" if digit == "0" else _KANJI[int(digit)] for digit in digits)

    def cardinal(self, number: int, gender: str = "") -> str:
        return "ゼロ" if number == 0 else super().cardinal(number, gender)

    def time(self, hour: int, minute: int, second: int | None) -> str:
        return super().time(hour, minute, second).replace("ゼロ時", "零時")

    def fraction(self, over: int, under: int) -> str | None:
        return f"{self.cardinal(under)}分の{self.cardinal(over)}" if 1 <= over < under else None

    def mixed(self, whole: str, fraction: str) -> str:
        return f"{whole}と{fraction}"


class Korean(EastAsian):
    """Korean."""

    code = "ko"
    space = " "
    point, minus, plus, to, number_sign, percent = "점", "마이너스", "플러스", "에서", "번호", "퍼센트"
    signs = {".": "점", "@": "골뱅이", "/": "슬래시", "-": "하이픈", "_": "밑줄", ":": "콜론"}
    year_word, month_word, day_word, hour_word, minute_word, second_word = "년", "월", "일", "시", "분", "초"
    money = {
        "₩": Money({"other": "원"}),
        "KRW": Money({"other": "원"}),
        "$": Money({"other": "달러"}),
        "USD": Money({"other": "달러"}),
        "€": Money({"other": "유로"}),
        "EUR": Money({"other": "유로"}),
        "£": Money({"other": "파운드"}),
        "¥": Money({"other": "엔"}),
    }
    native_counters = (
        "시간",
        "시",
        "개",
        "명",
        "살",
        "마리",
        "잔",
        "병",
        "권",
        "대",
        "장",
        "가지",
        "달",
        "번째",
        "벌",
        "송이",
        "그루",
        "곳",
        "사람",
    )
    """Counters behind Korean, not Chinese, numbers."""
    counters = "년월일시분초간원개명살마리잔병권대장가지달번째벌송이그루곳사람도층회호인분세기만억백천주"
    units = {
        "km": "킬로미터", "m": "미터", "cm": "센티미터", "mm": "밀리미터", "kg": "킬로그램", "g": "그램",
        "mg": "밀리그램", "l": "리터", "L": "리터", "ml": "밀리리터", "mL": "밀리리터", "km/h": "시속 {} 킬로미터",
        "m/s": "초속 {} 미터", "°C": "섭씨 {} 도", "℃": "섭씨 {} 도", "°": "도", "GB": "기가바이트",
        "MB": "메가바이트", "Hz": "헤르츠", "kHz": "킬로헤르츠", "W": "와트", "kW": "킬로와트", "V": "볼트",
        "m²": "제곱미터", "km²": "제곱킬로미터", "min": "분", "h": "시간", "s": "초", "mi": "마일", "ft": "피트",
        "lb": "파운드",
    }  # fmt: skip
    _ones = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
    _tens = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")

    def native(self, number: int) -> str:
        """Return a number from 1 to 99 in Korean words, as it stands before a counter."""
        tens, ones = divmod(number, 10)
        return "스무" if number == 20 else self._tens[tens] + self._ones[ones]

    def digits(self, digits: str) -> str:
        return " ".join("공" if digit == "0" and len(digits) > 1 else self.cardinal(int(digit)) for digit in digits)

    def decimals(self, digits: str) -> str:
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def unit(self, name: str, number: str, words: str) -> str:
        return name.format(words) if "{}" in name else f"{words} {name}"

    def cents(self, money: Money, whole: str, cents: str) -> str:
        return f"{self.spell(f'{whole}.{cents}')} {money.unit['other']}"

    def date(self, day: int | None, month: int, year: int | None) -> str:
        parts = [] if year is None else [f"{self.cardinal(year)}년"]
        parts.append({6: "유월", 10: "시월"}.get(month, f"{self.cardinal(month)}월"))
        if day is not None:
            parts.append(f"{self.cardinal(day)}일")
        return " ".join(parts)

    def time(self, hour: int, minute: int, second: int | None) -> str:
        said = f"{self.native(hour) if 1 <= hour <= 12 else self.cardinal(hour)} 시"
        if minute:
            said += f" {self.cardinal(minute)} 분"
        return said if second is None else f"{said} {self.cardinal(second)} 초"

    def fraction(self, over: int, under: int) -> str | None:
        return f"{self.cardinal(under)} 분의 {self.cardinal(over)}" if 1 <= over < under else None

    def _range(self, match: re.Match[str]) -> str:
        return super()._range(match).replace(" 에서", "에서", 1)

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        counters = "|".join(sorted(self.native_counters, key=len, reverse=True))
        yield re.compile(r"(?P<month>1[0-2]|[1-9])(?=월)"), self._month
        yield re.compile(rf"(?P<number>[1-9]\d?) ?(?={counters})"), self._counted
        yield re.compile(rf"(?P<number>{self._number})(?=[{self.counters}])"), lambda match: self.spell(match["number"])

    def _month(self, match: re.Match[str]) -> str:
        return {6: "유", 10: "시"}.get(int(match["month"]), self.cardinal(int(match["month"])))

    def _counted(self, match: re.Match[str]) -> str | None:
        number, following = int(match["number"]), match.string[match.end() :]
        if following.startswith("시") and not following.startswith("시간") and number > 12:
            return self.cardinal(number)
        if following.startswith("번") and not following.startswith("번째"):
            return None
        return self.native(number) + " "

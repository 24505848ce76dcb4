"""Numbers, times, dates and sums of money as people write them; espeak-ng reads them aloud."""

import random

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TEENS = (
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip


def spelt(number: int) -> str:
    """A number from 0 to 99 in words."""
    if number < 10:
        return DIGITS[number]
    if number < 20:
        return _TEENS[number - 10]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{DIGITS[ones]}" if ones else "")


def small_number(rng: random.Random) -> str:
    """2 to 99, in digits or in words."""
    number = rng.randint(2, 12) if rng.random() < 0.5 else rng.randint(2, 99)
    return spelt(number) if rng.random() < 0.5 else str(number)


def number(rng: random.Random) -> str:
    """Up to six digits, the longer the rarer."""
    length = rng.choices((1, 2, 3, 4, 5, 6), (4, 8, 8, 4, 1, 1))[0]
    value = rng.randint(10 ** (length - 1), 10**length - 1)
    if rng.random() < 0.4:
        value = round(value, 1 - length) or 1
    return str(value)


def digits(rng: random.Random, count: int) -> str:
    """Single digits with spaces between them, so that each is read by its own name."""
    return " ".join(rng.choice("0123456789") for _ in range(count))


def digit_words(rng: random.Random, count: int) -> str:
    """Single digits in words."""
    return " ".join(rng.choice(DIGITS) for _ in range(count))


def time(rng: random.Random) -> str:
    """A time of day."""
    hour = rng.randint(1, 12)
    form = rng.randrange(6)
    if form == 0:
        return f"{spelt(hour)} o'clock"
    if form == 1:
        return f"half past {spelt(hour)}"
    if form == 2:
        return f"a quarter {rng.choice(('to', 'past'))} {spelt(hour)}"
    minute = rng.choice((10, 15, 20, 25, 30, 35, 40, 45, 50, 55))
    if form == 3:
        return f"{spelt(hour)} {spelt(minute)}"
    clock = f"{hour}:{minute}"
    return clock if form == 4 else f"{clock} {rng.choice(('a.m.', 'p.m.'))}"


def money(rng: random.Random) -> str:
    """A price."""
    amount = small_number(rng)
    form = rng.randrange(3)
    if form == 0:
        return f"{amount} dollars"
    if form == 1:
        return f"{amount} dollars and {small_number(rng)} cents"
    return f"${rng.randint(2, 99)}"


def year(rng: random.Random) -> str:
    """A year from 1800 to 2029."""
    return str(rng.randint(1800, 2029))


def date(rng: random.Random) -> str:
    """A day of a month."""
    day = rng.randint(1, 31)
    return f"{rng.choice(MONTHS)} {day}"


def percent(rng: random.Random) -> str:
    """A share."""
    return f"{rng.randint(1, 100)} percent" if rng.random() < 0.6 else f"{rng.randint(1, 100)}%"

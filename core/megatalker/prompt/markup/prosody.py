"""How a part of a text is spoken: its rate and its volume, as SSML's ``<prosody>`` writes them.

Both are factors, so that elements within one another multiply. The pitch stays what the model makes it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from megatalker.errors import suggest
from megatalker.prompt.markup.parts import TextPlace

__all__ = ["FASTEST", "LOUDEST", "PLAIN", "SLOWEST", "Prosody"]

SLOWEST, FASTEST = 0.25, 4.0
"""Bounds of the rate."""
LOUDEST = 4.0
"""The largest factor of the volume: 12 dB."""
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.5, "x-fast": 2.0}
_VOLUMES = {
    "silent": 0.0,
    "x-soft": 0.25,
    "soft": 0.5,
    "medium": 1.0,
    "default": 1.0,
    "loud": 1.5,
    "x-loud": 2.0,
}
_UNCHANGED = ("medium", "default", "+0%", "-0%", "0%", "+0st", "-0st", "+0Hz", "-0Hz")
"""Values of pitch and range that ask for nothing."""
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<unit>%|dB|)", re.A | re.I)
ATTRIBUTES = ("rate", "volume", "pitch", "range")


@dataclass(frozen=True, slots=True)
class Prosody:
    """Factors of rate and volume."""

    rate: float = 1.0
    """2 takes half the time; from :data:`SLOWEST` to :data:`FASTEST`."""
    gain: float = 1.0
    """The factor of each sample, from 0 to :data:`LOUDEST`."""

    @classmethod
    def decode(cls, value: str) -> "Prosody":
        """Return what :meth:`encode` wrote."""
        rate, gain = map(float, value.split())
        return cls(rate, gain)

    def encode(self) -> str:
        """Return it as a text."""
        return f"{self.rate!r} {self.gain!r}"

    def within(self, attributes: Mapping[str, str], place: TextPlace) -> "Prosody":
        """Return the prosody of an element with these attributes that stands in speech of this one.

        Raises:
            MarkupError: an attribute asks for what cannot be done, or this rate or volume is out of bounds.
        """
        for name in ("pitch", "range"):
            if (asked := attributes.get(name, "default").strip()) not in _UNCHANGED:
                raise place.error(f"{name} is {asked!r:.40}, expected 'default': the model's {name} cannot be changed")
        rate = self.rate * _rate(attributes.get("rate", "default").strip(), place)
        gain = self.gain * _gain(attributes.get("volume", "default").strip(), place)
        if not SLOWEST <= rate <= FASTEST:
            raise place.error(
                f"the rate here is {rate:.3g} times the usual one, expected {SLOWEST:g} to {FASTEST:g}; elements "
                "within one another multiply"
            )
        if gain > LOUDEST:
            raise place.error(
                f"the volume here is {gain:.3g} times the usual one, expected at most {LOUDEST:g} (12 dB); elements "
                "within one another multiply"
            )
        if rate != 1.0 and find_spec("av") is None:
            raise place.error("a rate needs the package av; install it with: pip install 'megatalker[server]'")
        return Prosody(rate, gain)


PLAIN = Prosody()
"""Speech as the model makes it."""


def _rate(written: str, place: TextPlace) -> float:
    if written in _RATES:
        return _RATES[written]
    match = _NUMBER.fullmatch(written)
    if match is None or match["unit"].lower() == "db" or (match["sign"] and not match["unit"]):
        raise place.error(
            f"rate is {written!r:.40}, expected {_names(_RATES)}, a share such as 80% or 0.8, or a change such as +20%"
            f"{suggest(written, list(_RATES))}"
        )
    value = float(match["number"]) / (100 if match["unit"] else 1)
    return _changed(match["sign"], value)


def _gain(written: str, place: TextPlace) -> float:
    if written in _VOLUMES:
        return _VOLUMES[written]
    match = _NUMBER.fullmatch(written)
    found: float | None = None
    if match is not None:
        sign, value = match["sign"], float(match["number"])
        if match["unit"].lower() == "db":
            found = 10.0 ** ((-min(value, 400.0) if sign == "-" else min(value, 400.0)) / 20) if sign else None
        elif sign or value <= 100:
            found = _changed(sign, value / 100)
    if found is None or found < 0:
        raise place.error(
            f"volume is {written!r:.40}, expected {_names(_VOLUMES)}, a change such as +6dB or -20%, or a number from "
            f"0 to 100{suggest(written, list(_VOLUMES))}"
        )
    return found


def _changed(sign: str, value: float) -> float:
    return {"": value, "+": 1 + value, "-": 1 - value}[sign]


def _names(values: Mapping[str, float]) -> str:
    return ", ".join(values)

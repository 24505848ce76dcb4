"""Made-up speakers by the hundred, for a voice that is to clone: settings of espeak-ng's Klatt synthesiser."""

import math
import random
from functools import cache

from megatalker_demo_voice.speakers import SPEAKERS, EspeakSpeaker

HELD_OUT = 32
"""Made-up speakers to measure with."""

_LOWEST, _HIGHEST = 64, 148
"""Range of the lower end of a speaker's melody, in Hz."""
_SPANS = (1.38, 1.5)
"""Upper end of the melody, relative to the lower one."""
_TRACTS = (0.93, 1.11)
"""All formants, relative to espeak-ng's own: a long or a short vocal tract."""
_FORMANTS = 5
_BENT = 0.03
"""Each formant by itself, up or down."""
_RATES = (158, 172)
_BELOW, _OCTAVE = 0.87, 1.93
"""Where the pitch may be: from below the melody's lower end, less than an octave up."""
_GAIN, _GAIN_AT, _GAIN_FALLS = 0.8, 82, 0.6
"""High voices are loud, so they are turned down."""


def cast(count: int, *, held_out: bool) -> tuple[EspeakSpeaker, ...]:
    """Return the named speakers (0), or that many made-up ones; speakers to measure with are always the same."""
    if not count:
        return SPEAKERS
    return crowd(HELD_OUT, held_out=True) if held_out else crowd(count)


def everyone(count: int) -> tuple[EspeakSpeaker, ...]:
    """Return all speakers that there are with ``count`` made-up ones to train on."""
    return (*SPEAKERS, *cast(count, held_out=False), *cast(count, held_out=True)) if count else SPEAKERS


@cache
def crowd(count: int, *, held_out: bool = False) -> tuple[EspeakSpeaker, ...]:
    """The first ``count`` made-up speakers: always the same ones.

    Args:
        count: how many.
        held_out: others, which training never hears.
    """
    rng = random.Random("held-out voices" if held_out else "voices")
    return tuple(_made_up(f"mt_{'h' if held_out else 'c'}{index:03d}", rng) for index in range(count))


def traits(speaker: EspeakSpeaker) -> tuple[float, ...]:
    """Return the traits of a made-up speaker: pitch and formants, each about -1 to 1."""
    assert speaker.variant is not None
    fields = [line.split() for line in speaker.variant.splitlines()]
    low = next(float(field[1]) for field in fields if field[0] == "pitch")
    tracts = [float(field[2]) / 100 for field in fields if field[0] == "formant"]
    middle, half = math.log(_LOWEST * _HIGHEST) / 2, math.log(_HIGHEST / _LOWEST) / 2
    return ((math.log(low) - middle) / half, *((tract - 1.02) / 0.1 for tract in tracts))


def _made_up(name: str, rng: random.Random) -> EspeakSpeaker:
    low = math.exp(rng.uniform(math.log(_LOWEST), math.log(_HIGHEST)))
    high, tract = low * rng.uniform(*_SPANS), rng.uniform(*_TRACTS)
    formants = [tract * rng.uniform(1 - _BENT, 1 + _BENT) for _ in range(_FORMANTS)]
    lines = ["language variant", f"name {name}", "klatt 1", f"pitch {low:.0f} {high:.0f}"]
    lines += [f"formant {index} {100 * factor:.0f} 100 100" for index, factor in enumerate(formants)]
    return EspeakSpeaker(
        name,
        f"en-us+{name}",
        rate=rng.randint(*_RATES),
        pitch=50,
        hertz=(_BELOW * low, _BELOW * _OCTAVE * low),
        gain=_GAIN * (_GAIN_AT / low) ** _GAIN_FALLS,
        variant="\n".join(lines) + "\n",
    )

"""Words that do not exist but could: they teach how letters sound, so that the voice can read words it never saw."""

import random

_ONSETS = (
    "b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j", "k", "l", "m",
    "n", "p", "ph", "pl", "pr", "qu", "r", "s", "sc", "sh", "sk", "sl", "sm", "sn", "sp", "st", "str", "sw", "t",
    "th", "tr", "tw", "v", "w", "wh", "y", "z",
)  # fmt: skip
_VOWELS = (
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ay", "ea", "ee", "ei", "ie", "oa", "oo", "ou", "ow",
    "oy", "au", "aw", "ar", "er", "ir", "or", "ur",
)  # fmt: skip
_CODAS = (
    "b", "ck", "d", "ff", "ft", "g", "k", "l", "ld", "ll", "lt", "m", "mp", "n", "nd", "ng", "nk", "nt", "p", "pt",
    "r", "rd", "rk", "rm", "rn", "rt", "s", "sh", "sk", "sp", "ss", "st", "t", "tch", "th", "x",
)  # fmt: skip
_ENDINGS = (
    "e", "y", "le", "er", "ed", "ing", "ly", "ness", "ful", "less", "tion", "ment", "able", "ous", "ic", "al",
    "ist", "ish", "ity",
)  # fmt: skip


def invented_word(rng: random.Random) -> str:
    """One to three syllables, sometimes with a common ending."""
    syllables = [
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if rng.random() < 0.6 else "")
        for _ in range(rng.choices((1, 2, 3), (5, 4, 1))[0])
    ]
    word = "".join(syllables)
    if rng.random() < 0.35:
        word += rng.choice(_ENDINGS)
    return word

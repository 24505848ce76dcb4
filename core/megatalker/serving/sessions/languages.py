"""The languages that official checkpoints name, by ISO 639-1 code."""

NAMES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}


def name_of(code: str) -> str | None:
    """The engine's name of a BCP 47 code, its region left aside: ``german`` for ``de-AT``; ``None``: it has none."""
    return NAMES.get(code.replace("_", "-").partition("-")[0].lower())

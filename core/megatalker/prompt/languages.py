"""Names of languages: the engine's own, and the codes that other programs use for them."""

from collections.abc import Collection

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
"""The languages that published checkpoints name, by ISO 639-1 code."""

_THREE_LETTERS = {
    "deu": "de", "ger": "de", "eng": "en", "spa": "es", "fra": "fr", "fre": "fr", "ita": "it", "jpn": "ja",
    "kor": "ko", "por": "pt", "rus": "ru", "zho": "zh", "chi": "zh", "cmn": "zh",
}  # fmt: skip
"""ISO 639-2 and 639-3 codes of the same languages."""


def name_of(code: str) -> str | None:
    """Return the engine's name of a BCP 47 code: ``german`` for ``de-AT``; ``None``: it has none."""
    primary = code.strip().replace("_", "-").partition("-")[0].lower()
    return NAMES.get(_THREE_LETTERS.get(primary, primary))


def resolve(language: str, known: Collection[str]) -> str | None:
    """Return which of the ``known`` names a name or code in any case means; ``None``: none of them."""
    name = language.strip().lower()
    if name in known:
        return name
    meant = name_of(language)
    return meant if meant in known else None

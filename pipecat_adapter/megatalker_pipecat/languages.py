"""Pipecat's languages in the words of Qwen3-TTS, and back."""

from loguru import logger
from pipecat.transcriptions.language import Language
from pipecat.utils.types import NotGiven

AUTO = "auto"
"""The model finds out the language by itself."""

NAMES = {
    Language.DE: "german",
    Language.EN: "english",
    Language.ES: "spanish",
    Language.FR: "french",
    Language.IT: "italian",
    Language.JA: "japanese",
    Language.KO: "korean",
    Language.PT: "portuguese",
    Language.RU: "russian",
    Language.ZH: "chinese",
}
"""The languages that published checkpoints name. Regional variants share the name of their base language."""

_LANGUAGES = {name: language for language, name in NAMES.items()}


def name_of(language: Language) -> str:
    """What the engine calls a language: ``german`` for ``de-AT``; ``auto``, with a warning, for one without a name."""
    try:
        return NAMES[Language(language.value.split("-")[0].lower())]
    except (KeyError, ValueError):
        logger.warning(
            f"Qwen3-TTS has no name for the language {language.value}, so the model is left to find it out; "
            f"it names {', '.join(sorted(NAMES.values()))}"
        )
        return AUTO


def recognised(language: Language | str | NotGiven | None) -> Language | str | NotGiven | None:
    """A language given by the engine's name, as Pipecat's, so that sentences are cut by its rules; others unchanged."""
    if isinstance(language, str) and not isinstance(language, Language):
        return _LANGUAGES.get(language.lower(), language)
    return language

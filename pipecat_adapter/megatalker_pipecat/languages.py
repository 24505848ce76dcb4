"""Pipecat's languages in the words of Qwen3-TTS, and back."""

from loguru import logger
from pipecat.transcriptions.language import Language
from pipecat.utils.types import NotGiven

from megatalker.prompt import languages

AUTO = "auto"
"""The model finds out the language by itself."""

NAMES = {Language(code): name for code, name in languages.NAMES.items()}
"""The languages that published checkpoints name. Regional variants share the name of their base language."""

_LANGUAGES = {name: language for language, name in NAMES.items()}


def name_of(language: Language) -> str:
    """Return the engine's name of a language: ``german`` for ``de-AT``; ``auto``, with a warning, if it has none."""
    name = languages.name_of(language.value)
    if name is None:
        logger.warning(
            f"Qwen3-TTS has no name for the language {language.value}, so the model is left to find it out; "
            f"it names {', '.join(sorted(NAMES.values()))}"
        )
    return AUTO if name is None else name


def recognised(language: Language | str | NotGiven | None) -> Language | str | NotGiven | None:
    """Return Pipecat's language for the engine's name or a code, whose rules cut sentences; others are left."""
    if isinstance(language, str) and not isinstance(language, Language):
        return _LANGUAGES.get(languages.resolve(language, _LANGUAGES) or "", language)
    return language

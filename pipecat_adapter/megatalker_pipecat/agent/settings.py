"""The ``[agent]`` table of ``megatalker.toml``, or ``MEGATALKER_AGENT__*`` in the environment. It never holds a key."""

from pathlib import Path
from typing import Annotated

from pipecat.transcriptions.language import Language
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from megatalker.errors import SettingsError
from megatalker.settings import Settings, known_keys
from megatalker.settings.sources import decode_table, explain

DEFAULT_PROMPT = (
    "You are a friendly voice assistant. Your words are spoken aloud: answer in one to three short sentences of plain "
    "text, without lists, markup or emoji."
)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class EndpointSettings(_Table):
    """One service. Without ``url`` it is the provider's own (Deepgram hears, OpenAI answers)."""

    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Base URL of an OpenAI-compatible server, such as ``http://localhost:8000/v1``."""
    model: str | None = None
    """The model's name there; needed with ``url``, else the provider's default."""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable that holds the key for ``url``; ``None``: no key is sent."""


class HearingSettings(EndpointSettings):
    """Speech to text."""

    language: Annotated[Language, BeforeValidator(lambda code: _language(code))] | None = None
    """Code of the language that is spoken to the agent, such as ``de``; ``None``: the service's default, English."""


class AgentSettings(_Table):
    """Settings of the agent, without those of the engine. Unknown keys are refused by name.

    Keys (secrets) come from the environment alone: ``DEEPGRAM_API_KEY`` and ``OPENAI_API_KEY`` for the providers, and
    the variables that ``stt.key_env`` and ``llm.key_env`` name for servers of your own.
    """

    prompt: str = DEFAULT_PROMPT
    """The language model's instruction."""
    greeting: str | None = None
    """Said when somebody connects."""
    backends: tuple[str, ...] = ()
    """Talker backends that the page offers in addition to the engine's own; in the environment with commas between
    them. Each is loaded at the start, and takes its memory."""
    turn_log: Path | None = None
    """File that gets one JSON object a turn, with the times on the way to its first sound, and a summary at the end."""
    stt: HearingSettings = HearingSettings()
    """Speech to text: a table."""
    llm: EndpointSettings = EndpointSettings()
    """The language model: a table."""

    @classmethod
    def of(cls, settings: Settings) -> "AgentSettings":
        """Check the ``agent`` table of ``settings``.

        Raises:
            SettingsError: names each key that is unknown or has an impossible value.
        """
        try:
            return cls.model_validate(decode_table(cls, settings.agent))
        except ValidationError as error:
            faults = explain(error, Settings, {}, table="agent", known=known_keys(cls, "agent"))
            raise SettingsError(faults) from error


def _language(code: object) -> Language:
    try:
        return Language(str(code))
    except ValueError as error:
        raise ValueError("expected a code such as 'en' or 'pt-BR'") from error

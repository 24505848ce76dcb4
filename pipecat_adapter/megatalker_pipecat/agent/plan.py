"""Parts of an agent, chosen and checked once, before anything is loaded or a client connects."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from megatalker.errors import SettingsError
from megatalker.settings import Settings
from megatalker_pipecat.agent.settings import AgentSettings, EndpointSettings

DEEPGRAM_KEY, OPENAI_KEY = "DEEPGRAM_API_KEY", "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service to talk to."""

    provider: Literal["deepgram", "openai"]
    key: str = field(repr=False)
    model: str | None = None
    """``None``: the provider's default."""
    url: str | None = None
    """An OpenAI-compatible server; ``None``: the provider itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Engine, services and manners of an agent."""

    engine: Settings
    agent: AgentSettings
    stt: Endpoint | None
    """``None``: the agent does not listen; what it is told is typed."""
    llm: Endpoint | None
    """``None``: the agent says what it is told, word for word."""

    @classmethod
    def read(
        cls, *, text_only: bool, config_file: Path | None = None, environ: Mapping[str, str] = os.environ
    ) -> "Plan":
        """Read ``megatalker.toml`` (or ``config_file``) and the environment.

        Args:
            text_only: no speech is heard; a language model is used if one is configured.
            config_file: another settings file; it must exist.
            environ: where the keys are.

        Raises:
            SettingsError: a setting is unknown or impossible, or a service is missing; the message names what to set.
        """
        engine = Settings.read(config_file)
        agent = AgentSettings.of(engine)
        stt = None if text_only else _hearing(agent.stt, environ)
        llm = _answering(agent.llm, environ)
        missing = [] if text_only else [what for what, found in ((NO_STT, stt), (NO_LLM, llm)) if found is None]
        if missing:
            raise SettingsError(f"{'; '.join(missing)}. Or type instead of talking: megatalker-agent --text")
        return cls(engine, agent, stt, llm)


NO_STT = (
    f"there is no speech to text: set {DEEPGRAM_KEY} in the environment, or agent.stt.url and agent.stt.model "
    "(MEGATALKER_AGENT__STT__URL, MEGATALKER_AGENT__STT__MODEL) to an OpenAI-compatible server"
)
NO_LLM = (
    f"there is no language model: set {OPENAI_KEY} in the environment, or agent.llm.url and agent.llm.model "
    "(MEGATALKER_AGENT__LLM__URL, MEGATALKER_AGENT__LLM__MODEL) to an OpenAI-compatible server"
)


def _hearing(wish: EndpointSettings, environ: Mapping[str, str]) -> Endpoint | None:
    if wish.url is not None:
        return _own_server("agent.stt", wish, environ)
    key = _key(DEEPGRAM_KEY, environ)
    return Endpoint("deepgram", key, wish.model) if key else None


def _answering(wish: EndpointSettings, environ: Mapping[str, str]) -> Endpoint | None:
    if wish.url is not None:
        return _own_server("agent.llm", wish, environ)
    key = _key(OPENAI_KEY, environ)
    return Endpoint("openai", key, wish.model) if key else None


def _own_server(table: str, wish: EndpointSettings, environ: Mapping[str, str]) -> Endpoint:
    if wish.model is None:
        raise SettingsError(f"{table}.url is set, {table}.model is not: name the model that {wish.url} serves")
    key = "none"  # the OpenAI client would send OPENAI_API_KEY to a stranger's server if it were given none
    if wish.key_env is not None:
        key = _key(wish.key_env, environ)
        if not key:
            raise SettingsError(
                f"{table}.key_env names {_shown(wish.key_env)}, which the environment does not hold, or holds empty; "
                "set it"
            )
    return Endpoint("openai", key, wish.model, wish.url)


def _key(name: str, environ: Mapping[str, str]) -> str:
    """A key from the environment; one that is empty or blank is none."""
    return environ.get(name, "").strip()


def _shown(name: str) -> str:
    """A variable's name as people write them; anything else may be the key itself, and is not shown."""
    return repr(name) if name.isupper() and len(name) <= 40 else "a variable (not shown: it may be a key)"

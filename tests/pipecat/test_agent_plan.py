import logging
import re
from pathlib import Path

import pytest
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService

from megatalker.cli.status import PACKAGES
from megatalker.errors import SettingsError
from megatalker_pipecat.agent.logs import log_decisions
from megatalker_pipecat.agent.parrot import Parrot
from megatalker_pipecat.agent.plan import Endpoint, Plan
from megatalker_pipecat.agent.services import answering, hearing

URL = "http://localhost:1/v1"
README = Path(__file__).parents[2] / "pipecat_adapter" / "README.md"
OWN_SERVERS = f'[agent.stt]\nurl = "{URL}"\nmodel = "ears"\n[agent.llm]\nurl = "{URL}"\nmodel = "mind"\n'


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_providers_are_used_when_their_keys_are_set() -> None:
    keys = {"DEEPGRAM_API_KEY": "for deepgram", "OPENAI_API_KEY": "for openai"}
    plan = Plan.read(text_only=False, environ=keys)
    assert plan.stt == Endpoint("deepgram", "for deepgram")
    assert plan.llm == Endpoint("openai", "for openai")
    assert isinstance(hearing(plan), DeepgramSTTService)
    assert isinstance(answering(plan), OpenAILLMService)
    assert "for deepgram" not in repr(plan)


def test_servers_of_ones_own_get_no_providers_key() -> None:
    Path("megatalker.toml").write_text(OWN_SERVERS)
    plan = Plan.read(text_only=False, environ={"DEEPGRAM_API_KEY": "secret", "OPENAI_API_KEY": "secret"})
    assert plan.stt == Endpoint("openai", "none", "ears", URL)
    assert plan.llm == Endpoint("openai", "none", "mind", URL)
    assert isinstance(hearing(plan), OpenAISTTService)


def test_servers_of_ones_own_get_the_key_named_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("megatalker.toml").write_text(OWN_SERVERS)
    monkeypatch.setenv("MEGATALKER_AGENT__LLM__KEY_ENV", "MY_KEY")
    plan = Plan.read(text_only=False, environ={"MY_KEY": "mine"})
    assert plan.llm is not None
    assert plan.llm.key == "mine"
    with pytest.raises(SettingsError, match=r"agent\.llm\.key_env names 'MY_KEY', which the environment does not hold"):
        Plan.read(text_only=False, environ={})


def test_the_table_in_the_readme_is_a_plan() -> None:
    found = re.search(r"^```toml\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    Path("megatalker.toml").write_text(found[1])
    plan = Plan.read(text_only=False, environ={"MY_LLM_KEY": "mine"})
    assert plan.stt == Endpoint("openai", "none", "whisper-1", "http://localhost:8000/v1")
    assert plan.llm == Endpoint("openai", "mine", "qwen3", "http://localhost:11434/v1")


@pytest.mark.parametrize(
    ("environ", "named", "not_named"),
    [
        ({}, ["DEEPGRAM_API_KEY", "agent.stt.url", "OPENAI_API_KEY", "agent.llm.url", "--text"], []),
        ({"DEEPGRAM_API_KEY": "x"}, ["OPENAI_API_KEY", "MEGATALKER_AGENT__LLM__URL"], ["DEEPGRAM"]),
        ({"OPENAI_API_KEY": "x"}, ["DEEPGRAM_API_KEY", "MEGATALKER_AGENT__STT__URL"], ["OPENAI_API"]),
    ],
)
def test_missing_settings_are_named(environ: dict[str, str], named: list[str], not_named: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        Plan.read(text_only=False, environ=environ)
    assert all(name in str(error.value) for name in named)
    assert not any(name in str(error.value) for name in not_named)


def test_typed_text_needs_nothing() -> None:
    plan = Plan.read(text_only=True, environ={"DEEPGRAM_API_KEY": "x"})
    assert (plan.stt, plan.llm) == (None, None)
    assert hearing(plan) is None
    assert isinstance(answering(plan), Parrot)


def test_typed_text_is_answered_by_the_language_model_if_there_is_one() -> None:
    plan = Plan.read(text_only=True, environ={"OPENAI_API_KEY": "x"})
    assert isinstance(answering(plan), OpenAILLMService)


def test_a_server_needs_a_model() -> None:
    Path("megatalker.toml").write_text(f'[agent.stt]\nurl = "{URL}"\n')
    with pytest.raises(SettingsError, match=r"agent\.stt\.model is not: name the model"):
        Plan.read(text_only=False, environ={"OPENAI_API_KEY": "x"})


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("[agent]\ngreting = 'Hi'", r"unknown setting 'agent\.greting'; did you mean 'agent\.greeting'"),
        ("[agent.llm]\nkey = 'secret'", r"unknown setting 'agent\.llm\.key'"),
        ("[agent.stt]\nurl = 'localhost:8000'", r"setting 'agent\.stt\.url' is 'localhost:8000'"),
        ("[agent]\nprompt = 7", r"setting 'agent\.prompt' is 7"),
    ],
)
def test_impossible_settings_are_refused_by_name(table: str, complaint: str) -> None:
    Path("megatalker.toml").write_text(table)
    with pytest.raises(SettingsError, match=complaint):
        Plan.read(text_only=True, environ={})


def test_an_unknown_language_is_refused() -> None:
    Path("megatalker.toml").write_text(OWN_SERVERS.replace('"ears"', '"ears"\nlanguage = "klingon"'))
    with pytest.raises(SettingsError, match=r"'agent\.stt\.language' is 'klingon': .*expected a code such as 'en'"):
        Plan.read(text_only=False, environ={})


def test_another_settings_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('backend = "reference"\n[agent]\ngreeting = "Hello."\n')
    plan = Plan.read(text_only=True, config_file=tmp_path / "other.toml", environ={})
    assert (plan.engine.backend, plan.agent.greeting) == ("reference", "Hello.")


@pytest.mark.parametrize(("wanted", "level"), [(False, logging.WARNING), (True, logging.INFO)])
def test_decisions_of_the_engine_are_shown_on_request(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, level: int
) -> None:
    logger = logging.getLogger("megatalker.engine.failover")
    for package in PACKAGES:
        monkeypatch.setattr(logging.getLogger(package), "level", logging.NOTSET)
    log_decisions(wanted)
    assert logger.getEffectiveLevel() == level

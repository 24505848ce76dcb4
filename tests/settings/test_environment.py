"""Environment variables: lists, tables, quotes, errors that name the variable, and what Kubernetes and Docker set."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from megatalker.errors import SettingsError
from megatalker.interfaces import BackendSettings
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings
from megatalker.settings.sources import decode, decode_table
from megatalker_backends.compiled import spec as compiled
from megatalker_pipecat.agent.settings import AgentSettings

ORIGINS = "MEGATALKER_SERVER__ALLOWED_ORIGINS"


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("MEGATALKER_"):
            monkeypatch.delenv(name)


def read(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return Settings.read()


# ---- lists and tables


@pytest.mark.parametrize(
    "text",
    [
        '["https://a", "https://b"]',
        "https://a,https://b",
        " https://a , https://b, ",
        "https://a\nhttps://b\n",
        '"https://a,https://b"',
        "'https://a,https://b'",
        '"https://a","https://b"',
        '\'["https://a", "https://b"]\'',
        '"["https://a","https://b"]"',
    ],
)
def test_a_list_is_json_or_has_commas_with_or_without_quotes(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert read(monkeypatch, **{ORIGINS: text}).server.allowed_origins == ("https://a", "https://b")


@pytest.mark.parametrize("text", ["cuda:0,cuda:2", '["cuda:0", "cuda:2"]', "cuda:0, cuda:2,"])
def test_a_list_in_place_of_a_word(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert read(monkeypatch, MEGATALKER_SERVER__DEVICES=text).server.devices == ("cuda:0", "cuda:2")
    assert read(monkeypatch, MEGATALKER_SERVER__DEVICES="cuda:1").server.devices == ("cuda:1",)
    assert read(monkeypatch, MEGATALKER_SERVER__DEVICES="auto").server.devices == "auto"


@pytest.mark.parametrize("text", ["", '""', "[]", ","])
def test_an_empty_list(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert read(monkeypatch, **{ORIGINS: text, "MEGATALKER_FALLBACKS": text}).fallbacks == ()
    assert Settings.read().server.allowed_origins == ()


def test_lists_and_tables_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(
        monkeypatch,
        MEGATALKER_FALLBACKS="compiled, reference",
        MEGATALKER_SERVER='{"port": 81, "model_aliases": ["one", "two"]}',
        MEGATALKER_SERVER__ALLOWED_HOSTS="a.example.com",
        MEGATALKER_SERVER__VOICE_ALIASES="alloy=mina, ash = otto",
        MEGATALKER_BACKENDS__COMPILED='{"max_streams": 3}',
    )
    assert settings.fallbacks == ("compiled", "reference")
    assert settings.server.port == 81
    assert settings.server.model_aliases == ("one", "two")
    assert settings.server.allowed_hosts == ("a.example.com",)
    assert settings.server.voice_aliases == {"alloy": "mina", "ash": "otto"}
    assert settings.backends["compiled"] == {"max_streams": 3}


def test_a_variable_of_a_key_wins_over_the_one_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, MEGATALKER_SERVER__PORT="82", MEGATALKER_SERVER='{"port": 81, "lazy": true}')
    assert (settings.server.port, settings.server.lazy) == (82, True)


def test_a_table_that_is_none_does_not_vanish_behind_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"MEGATALKER_SERVER__PORT and MEGATALKER_SERVER are both set"):
        read(monkeypatch, MEGATALKER_SERVER="8000", MEGATALKER_SERVER__PORT="82")


@pytest.mark.parametrize("text", ["'mina'", '"mina"', " mina ", "mina\n", "mina"])
def test_quotes_of_an_env_file_are_no_part_of_a_value(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert read(monkeypatch, MEGATALKER_VOICE=text, MEGATALKER_SERVER__PORT='"81"').voice == "mina"


class _Own(BackendSettings):
    widths: tuple[Annotated[int, Field(ge=1)], ...] = ()
    names: set[str] = Field(default_factory=set)
    pairs: dict[str, str] = Field(default_factory=dict)
    word: str = ""


def test_tables_of_plug_ins_and_of_the_agent_read_lists_too(monkeypatch: pytest.MonkeyPatch) -> None:
    own = _Own.model_validate(decode_table(_Own, {"widths": "1, 2", "names": "a,b", "pairs": "x=1", "word": "[a, b]"}))
    assert (own.widths, own.names, own.pairs, own.word) == ((1, 2), {"a", "b"}, {"x": "1"}, "[a, b]")
    settings = read(monkeypatch, MEGATALKER_AGENT__BACKENDS="compiled,reference", MEGATALKER_AGENT__PROMPT="[Be kind]")
    agent = AgentSettings.of(settings)
    assert (agent.backends, agent.prompt) == (("compiled", "reference"), "[Be kind]")


@given(st.text(), st.sampled_from([tuple[str, ...], dict[str, str], set[int], str, int | None, BaseModel, Any]))
def test_any_text_is_decoded_without_an_error(text: str, wanted: Any) -> None:
    decode(wanted, text)


def test_brackets_without_end_are_no_work() -> None:
    assert decode(tuple[str, ...], "[" * 100_000) == "[" * 100_000


# ---- errors


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MEGATALKER_MAX_STREAMS", "true", r"setting 'max_streams' is 'true': .*integer"),
        ("MEGATALKER_SERVER__PORT", "99999", r"setting 'server\.port' is '99999': .*65535"),
        ("MEGATALKER_SERVER", "8000", r"setting 'server' .*dictionary.*; in the environment, write JSON"),
        (ORIGINS, '["https://a"', r"setting 'server\.allowed_origins' is .*tuple; in the environment, write JSON"),
        ("MEGATALKER_FALLBACKS", "[1]", r"setting 'fallbacks\.0' is 1: .*string"),
        ("MEGATALKER_SERVER__VOICE_ALIASES", "alloy", r"setting 'server\.voice_aliases' .*NAME=VALUE"),
        ("MEGATALKER_SERVER__KEYS__APP", "x", r"setting 'server\.keys\.app' "),
        ("MEGATALKER_THREADS", "many", r"setting 'threads' is 'many': .*integer.*'auto'"),
        ("MEGATALKER_SERVER__PROT", "1", r"unknown setting 'server\.prot'; .*it is MEGATALKER_SERVER__PORT"),
        ("MEGATALKER_SERVER_PORT", "1", r"unknown setting 'server_port'; .*it is MEGATALKER_SERVER__PORT"),
        ("MEGATALKER_CHEKPOINT", "demo", r"unknown setting 'chekpoint'; .*it is MEGATALKER_CHECKPOINT"),
        ("MEGATALKER_SERVER", '{"prot": 1}', r"unknown setting 'server\.prot'; did you mean 'server\.port'"),
        ("megatalker_max_frames", "x", r"setting 'max_frames' is 'x'"),
    ],
)
def test_an_error_names_the_variable_what_was_found_and_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=rf"environment variable {name}: {message}") as refused:
        read(monkeypatch, **{name: text})
    assert "function-" not in str(refused.value)


def test_an_error_of_a_plug_in_or_the_agent_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, MEGATALKER_BACKENDS__COMPILED__MAX_STREAMS="x", MEGATALKER_AGENT__LLM__URI="y")
    with pytest.raises(SettingsError, match=r"variable MEGATALKER_BACKENDS__COMPILED__MAX_STREAMS: setting 'backends"):
        own_settings(compiled.TALKER, settings)
    with pytest.raises(SettingsError, match=r"variable MEGATALKER_AGENT__LLM__URI: unknown setting 'agent\.llm\.uri'"):
        AgentSettings.of(settings)


def test_what_another_source_says_is_not_blamed_on_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATALKER_MAX_STREAMS", "3")
    with pytest.raises(SettingsError, match=r"^setting 'max_streams' is 0"):
        Settings.read(max_streams=0)
    monkeypatch.setenv("MEGATALKER_SERVER", '{"port": 81}')
    Path("megatalker.toml").write_text("[server]\nprot = 1\n")
    with pytest.raises(SettingsError, match=r"^unknown setting 'server\.prot'"):
        Settings.read()


# ---- service links

KUBERNETES = {
    "_SERVICE_HOST": "10.43.7.12",
    "_SERVICE_PORT": "80",
    "_SERVICE_PORT_HTTP": "80",
    "_PORT": "tcp://10.43.7.12:80",
    "_PORT_80_TCP": "tcp://10.43.7.12:80",
    "_PORT_80_TCP_ADDR": "10.43.7.12",
    "_PORT_80_TCP_PORT": "80",
    "_PORT_80_TCP_PROTO": "tcp",
    "_PORT_53_UDP": "udp://10.43.7.12:53",
    "_PORT_53_UDP_PROTO": "udp",
}
OVER_IPV6 = {
    "_SERVICE_HOST": "fd00:10:96::7",
    "_PORT": "tcp://[fd00:10:96::7]:80",
    "_PORT_80_TCP_ADDR": "fd00:10:96::7",
}
DOCKER = {
    "_NAME": "/bot/megatalker",
    "_PORT": "tcp://172.17.0.5:8000",
    "_PORT_8000_TCP_START": "tcp://172.17.0.5:8000",
    "_PORT_8000_TCP_PORT_END": "8003",
    "_ENV_PATH": "/usr/bin:/bin",
    "_ENV_MEGATALKER_VOICE": "mina",
}


@pytest.mark.parametrize("service", ["MEGATALKER", "MEGATALKER_TTS", "MEGATALKER_SERVER", "MEGATALKER_A_2__B"])
@pytest.mark.parametrize("links", [KUBERNETES, OVER_IPV6, DOCKER], ids=["kubernetes", "ipv6", "docker"])
def test_service_links_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, service: str, links: dict[str, str]
) -> None:
    caplog.set_level(logging.DEBUG, "megatalker.settings.sources")
    settings = read(monkeypatch, MEGATALKER_VOICE="otto", **{service + end: text for end, text in links.items()})
    assert settings == Settings(voice="otto")
    for end in links:
        assert f"{service}{end} tells where a service is" in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MEGATALKER_PORT", "8000"),
        ("MEGATALKER_SERVICE_HOST", "0.0.0.0"),
        ("MEGATALKER_SERVICE_HOST", "tts.example.com"),
        ("MEGATALKER_SERVICE_PORT", "http"),
        ("MEGATALKER_PORT_80_TCP", "80"),
        ("MEGATALKER_NAME", "mina"),
        ("MEGATALKER_ENV_PATH", "/bin"),
        ("MEGATALKER_SERVER_HOST", "10.0.0.1"),
        ("MEGATALKER_HOST", "10.0.0.1"),
        ("MEGATALKER_SERVICE__PORT", "8000"),
    ],
)
def test_what_only_looks_like_a_service_link_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    with pytest.raises(SettingsError, match=f"environment variable {name}: unknown setting"):
        read(monkeypatch, **{name: text})

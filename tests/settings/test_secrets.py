"""Secrets among the settings: what is refused at the start, and that no message shows one."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from megatalker.errors import SettingsError
from megatalker.serving.client import RemoteEngine
from megatalker.serving.protocol.asking import key_headers, shown_url
from megatalker.serving.server.callers import ANONYMOUS
from megatalker.serving.server.keyring import OWNER, hash_key
from megatalker.settings import ServerSettings, Settings
from megatalker.settings.values import RESERVED_KEY_NAMES
from megatalker_pipecat.agent.plan import Plan

PLAIN = "mt-hunter2-correct-horse-battery-staple-again"
HASH = hash_key(PLAIN)


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def secrets_of(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if "SecretStr" in str(field.annotation)]


@pytest.mark.parametrize("empty", ["", " ", "\t\n"])
@pytest.mark.parametrize("name", secrets_of(ServerSettings))
def test_an_empty_secret_is_refused_by_name_wherever_it_comes_from(
    name: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"MEGATALKER_SERVER__{name.upper()}"
    with pytest.raises(SettingsError, match=rf"'server\.{name}'.*empty.*{variable}"):
        Settings.read(server={name: empty})
    Path("megatalker.toml").write_text(f"[server]\n{name} = {empty!r}\n".replace("'", '"'))
    with pytest.raises(SettingsError, match=rf"'server\.{name}'.*empty"):
        Settings.read()
    Path("megatalker.toml").unlink()
    monkeypatch.setenv(variable, empty)
    with pytest.raises(SettingsError, match=rf"'server\.{name}'.*empty.*leave it out"):
        Settings.read()


def test_every_secret_of_the_server_is_looked_at() -> None:
    assert secrets_of(ServerSettings) == ["api_key", "token_secret", "tls_key_password"]


@pytest.mark.parametrize("secret", ["short", "a" * 15, " " * 20 + "a" * 15])
def test_a_secret_for_tokens_that_could_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(SettingsError, match=r"at least 16.*openssl rand") as refused:
        Settings.read(server={"token_secret": secret})
    assert secret.strip() not in str(refused.value).replace("at least", "")
    assert Settings.read(server={"token_secret": "a" * 16}).server.token_secret == SecretStr("a" * 16)


@pytest.mark.parametrize("key", ["two words", "line\n", "schlüssel", "nul\0", "\ud800", "😀"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    for refuse in (lambda: Settings.read(server={"api_key": key}), lambda: key_headers(key)):
        with pytest.raises(SettingsError, match=r"api_key.*printable ASCII") as refused:
            refuse()
        assert key not in str(refused.value)


WRONG_PLACES: list[dict[str, Any]] = [
    {"keys": {"anna": {"hash": PLAIN}}},
    {"keys": {"anna": {"hash": [PLAIN]}}},
    {"keys": {"anna": PLAIN}},
    {"keys": {"anna": [PLAIN]}},
    {"keys": PLAIN},
    {"keys": [PLAIN]},
    {"keys": {"anna": {"hash": HASH, "max_streams": {"key": PLAIN}}}},
    {"keys": {PLAIN: {"hash": HASH}}},
    {"api_key": [PLAIN]},
    {"api_key": {"value": PLAIN}},
    {"api_key": PLAIN + " "},
    {"token_secret": PLAIN + "\0"},
    {"tls_key_password": [PLAIN]},
    {"port": {"api_key": PLAIN}},
]


@pytest.mark.parametrize("server", [*WRONG_PLACES, PLAIN, [PLAIN]])
def test_no_error_shows_a_secret_that_stands_in_the_wrong_place(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingsError, match="server") as refused:
        Settings.read(server=server)
    logging.getLogger("megatalker").error("as a server logs it", exc_info=refused.value)
    assert PLAIN not in str(refused.value) + caplog.text


def test_pydantic_s_own_words_show_no_secret_either() -> None:
    for server in ({"keys": {"anna": {"hash": PLAIN}}}, {"api_key": [PLAIN]}, PLAIN):
        with pytest.raises(ValidationError) as refused:
            ServerSettings.model_validate(server)
        assert PLAIN not in str(refused.value)


def test_values_that_are_no_secrets_are_still_shown() -> None:
    own = {"hash": HASH, "max_streams": 0}
    with pytest.raises(SettingsError, match=r"'server\.keys\.anna\.max_streams' is 0"):
        Settings.read(server={"keys": {"anna": own}})
    with pytest.raises(SettingsError, match=r"'server\.token_lifetime_s' is -5"):
        Settings.read(server={"token_lifetime_s": -5})


def test_settings_show_no_secret_however_they_are_printed() -> None:
    server = {"api_key": PLAIN, "token_secret": PLAIN, "tls_key_password": PLAIN}
    settings = Settings.read(server=server)
    shown = [repr(settings), str(settings.server), settings.model_dump_json(), str(settings.model_dump())]
    assert not [text for text in shown if PLAIN in text]


def test_the_hash_of_an_empty_key_opens_nothing() -> None:
    nothing = "sha256:" + hashlib.sha256(b"").hexdigest()
    with pytest.raises(SettingsError, match=r"'server\.keys\.anna\.hash'.*empty key"):
        Settings.read(server={"keys": {"anna": {"hash": nothing}}})


@pytest.mark.parametrize("name", [*RESERVED_KEY_NAMES, "", " ", "anna ", "a\nb", "a" * 101, "mt-" + "k3Y_" * 10])
def test_names_that_no_server_accepts_are_refused_when_settings_are_read(name: str) -> None:
    with pytest.raises(SettingsError, match=r"key cannot be named|itself a key") as refused:
        Settings.read(server={"keys": {name: {"hash": HASH}}})
    assert "mt-" not in str(refused.value)


def test_the_reserved_names_are_those_of_callers_without_an_entry() -> None:
    assert set(RESERVED_KEY_NAMES) == {OWNER, ANONYMOUS}


# ---- clients and the agent


@pytest.mark.parametrize("key", ["", "  ", "a b", "a\r\nX-Evil: 1"])
def test_a_client_refuses_a_key_that_is_empty_or_no_header(key: str) -> None:
    with pytest.raises(SettingsError, match="api_key is"):
        RemoteEngine("http://localhost:1", api_key=key)


def test_a_password_in_a_url_is_not_shown() -> None:
    for url in ("ftp://anna:hunter2@host/", "http://anna:hunter2@host:0", "http://anna:hunter2@[half/"):
        with pytest.raises(SettingsError, match="the server's URL is") as refused:
            RemoteEngine(url)
        assert "hunter2" not in str(refused.value)
    assert shown_url("wss://anna:p@ss@host:1/a@b") == "wss://host:1/a@b"


@pytest.mark.parametrize(
    ("environ", "agent", "complaint"),
    [
        ({"OPENAI_API_KEY": " ", "DEEPGRAM_API_KEY": ""}, {}, "set DEEPGRAM_API_KEY .*set OPENAI_API_KEY"),
        ({"MY_KEY": "  "}, {"llm": {"url": "http://a", "model": "b", "key_env": "MY_KEY"}}, "'MY_KEY', .*empty"),
        ({}, {"llm": {"url": "http://a", "model": "b", "key_env": "sk-" + PLAIN}}, "key_env"),
        ({}, {"llm": {"url": "http://a", "model": "b", "key_env": "sk_" + PLAIN.replace("-", "_")}}, "not shown"),
        ({}, {"llm": {"url": "http://a", "model": "b", "key": PLAIN}}, "unknown setting 'agent.llm.key'"),
    ],
)
def test_the_agent_refuses_empty_keys_and_shows_none(
    environ: dict[str, str], agent: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Settings.read
    monkeypatch.setattr(Settings, "read", lambda _file=None: original(agent=agent))
    with pytest.raises(SettingsError, match=complaint) as refused:
        Plan.read(text_only=False, environ=environ)
    assert "hunter2" not in str(refused.value)

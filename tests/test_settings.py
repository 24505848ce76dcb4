from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megatalker.errors import SettingsError
from megatalker.settings import Settings


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_sources_win_in_the_documented_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("megatalker.toml").write_text('backend = "compiled"\nlanguage = "german"\nmax_streams = 3\n')
    monkeypatch.setenv("MEGATALKER_LANGUAGE", "french")
    monkeypatch.setenv("MEGATALKER_MAX_STREAMS", "4")

    settings = Settings.read(max_streams=5)

    assert (settings.backend, settings.language, settings.max_streams) == ("compiled", "french", 5)


def test_nested_settings_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("megatalker.toml").write_text("[backends.compiled]\nmax_streams = 2\n")
    monkeypatch.setenv("MEGATALKER_BACKENDS__COMPILED__COMPILE", "off")
    assert dict(Settings.read().backends["compiled"]) == {"max_streams": 2, "compile": "off"}


def test_the_agents_table_is_left_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("megatalker.toml").write_text('[agent]\ngreeting = "Hello."\n[agent.llm]\nmodel = "small"\n')
    monkeypatch.setenv("MEGATALKER_AGENT__LLM__URL", "http://localhost:1/v1")
    assert Settings.read().agent == {
        "greeting": "Hello.",
        "llm": {"model": "small", "url": "http://localhost:1/v1"},
    }


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('voice = "vivian"\n')
    assert Settings.read(tmp_path / "other.toml").voice == "vivian"
    with pytest.raises(SettingsError, match=r"nowhere\.toml' does not exist"):
        Settings.read(tmp_path / "nowhere.toml")


def test_unknown_key_in_the_file_is_refused_with_the_close_one() -> None:
    Path("megatalker.toml").write_text("max_stream = 2\n")
    with pytest.raises(SettingsError, match=r"unknown setting 'max_stream'; did you mean 'max_streams'"):
        Settings.read()


def test_unknown_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATALKER_BAKEND", "compiled")
    with pytest.raises(SettingsError, match=r"MEGATALKER_BAKEND.*did you mean 'backend'"):
        Settings.read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_streams", 0),
        ("max_frames", -1),
        ("dtype", "int8"),
        ("step_deadline_s", 0),
        ("max_waiting", -1),
        ("backend", 7),
    ],
)
def test_impossible_value_names_the_key_and_the_value(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"setting '{key}' is {value!r}"):
        Settings.read(**{key: value})


def test_malformed_file() -> None:
    Path("megatalker.toml").write_text("backend = \n")
    with pytest.raises(SettingsError, match="cannot be read"):
        Settings.read()


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(key=st.text(min_size=1, max_size=30), value=st.one_of(st.integers(), st.text(), st.none(), st.floats()))
def test_any_keyword_is_accepted_or_refused_clearly(key: str, value: object) -> None:
    if key in Settings.model_fields:
        return
    with pytest.raises(SettingsError, match="unknown setting"):
        Settings.read(**{key: value})

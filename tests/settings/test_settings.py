import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megatalker.errors import SettingsError
from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings
from megatalker_backends.compiled import spec as compiled
from megatalker_backends.megakernel import spec as megakernel
from megatalker_backends.reference import spec as reference
from megatalker_backends.streaming import spec as streaming


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
    settings = Settings.read(tmp_path / "other.toml")
    assert settings.voice == "vivian"
    assert type(settings) is Settings, "other processes are told it"
    assert pickle.loads(pickle.dumps(settings)) == settings
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


@pytest.mark.parametrize("key", ["max_streams", "max_frames", "max_waiting"])
@pytest.mark.parametrize("value", [True, False, 4.0, 4.5])
def test_neither_a_boolean_nor_a_float_is_an_integer(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"setting '{key}' is {value!r}: expected an integer"):
        Settings.read(**{key: value})


def test_a_boolean_is_no_number_of_seconds_and_no_port() -> None:
    with pytest.raises(SettingsError, match=r"setting 'step_deadline_s' is True: expected a number"):
        Settings.read(step_deadline_s=True)
    Path("megatalker.toml").write_text("[server]\nport = true\n")
    with pytest.raises(SettingsError, match=r"setting 'server\.port' is True: expected an integer"):
        Settings.read()


def test_numbers_in_the_environment_are_texts_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATALKER_MAX_STREAMS", "4")
    monkeypatch.setenv("MEGATALKER_STEP_DEADLINE_S", "2.5")
    monkeypatch.setenv("MEGATALKER_SERVER__PORT", "81")
    settings = Settings.read()
    assert (settings.max_streams, settings.step_deadline_s, settings.server.port) == (4, 2.5, 81)
    monkeypatch.setenv("MEGATALKER_MAX_STREAMS", "true")
    with pytest.raises(SettingsError, match="setting 'max_streams' is 'true'"):
        Settings.read()


def test_an_environment_value_that_is_no_table_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATALKER_SERVER", "port: 80")
    with pytest.raises(SettingsError, match=r"variable MEGATALKER_SERVER: .*write JSON"):
        Settings.read()


def test_a_malformed_file_is_named_with_the_line() -> None:
    Path("megatalker.toml").write_text('voice = "ryan"\nbackend = \n')
    with pytest.raises(SettingsError, match=r"settings file 'megatalker\.toml' is not TOML: .*line 2"):
        Settings.read()
    with pytest.raises(SettingsError, match=r"settings file 'megatalker\.toml' is not TOML: .*line 2"):
        Settings()
    Path("other.toml").write_bytes(b'voice = "ryan"\n\nlanguage = "fran\xe7ais"\n')
    with pytest.raises(SettingsError, match=r"'other\.toml' is not UTF-8 text \(line 3\)"):
        Settings.read(Path("other.toml"))


@pytest.mark.parametrize(
    ("written", "meant"), [("server.api_ky", "server.api_key"), ("server.prot", "server.port"), ("vioce", "voice")]
)
def test_the_key_that_was_meant_is_suggested_in_its_table(written: str, meant: str) -> None:
    Path("megatalker.toml").write_text(f'{written} = "x"\n')
    with pytest.raises(SettingsError, match=rf"unknown setting '{written}'; did you mean '{meant}'\?"):
        Settings.read()


@pytest.mark.parametrize(
    ("spec", "written", "meant"),
    [
        (compiled.TALKER, {"max_stream": 2}, "backends.compiled.max_streams"),
        (megakernel.TALKER, {"prefix_row": 2}, "backends.megakernel.prefix_rows"),
        (streaming.CODEC, {"max_frame": 2}, "codecs.streaming.max_frames"),
    ],
)
def test_a_backends_table_suggests_too(spec: TalkerBackend | CodecBackend, written: dict[str, int], meant: str) -> None:
    table = meant.split(".")[0]
    settings = Settings.read(**{table: {spec.name: written}})
    with pytest.raises(SettingsError, match=rf"unknown setting '{table}\.{spec.name}\..*'; did you mean '{meant}'"):
        own_settings(spec, settings)


@pytest.mark.parametrize("spec", [reference.TALKER, compiled.TALKER, megakernel.TALKER])
def test_integers_of_a_backend_are_integers(spec: TalkerBackend) -> None:
    settings = Settings.read(backends={spec.name: {"max_streams": True}})
    with pytest.raises(SettingsError, match=rf"'backends\.{spec.name}\.max_streams' is True: expected an integer"):
        own_settings(spec, settings)


def test_a_rule_over_several_keys_names_the_table() -> None:
    settings = Settings.read(backends={"megakernel": {"stages": 3, "in_flight": 3}})
    with pytest.raises(SettingsError, match=r"setting 'backends\.megakernel' is .*: stages is 3, expected more than"):
        own_settings(megakernel.TALKER, settings)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(key=st.text(min_size=1, max_size=30), value=st.one_of(st.integers(), st.text(), st.none(), st.floats()))
def test_any_keyword_is_accepted_or_refused_clearly(key: str, value: object) -> None:
    if key in Settings.model_fields:
        return
    with pytest.raises(SettingsError, match="unknown setting"):
        Settings.read(**{key: value})


def test_names_of_fields_are_taken_as_they_are() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'THREADS'"):
        Settings.read(THREADS=1, threads=2)

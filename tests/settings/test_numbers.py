"""Numbers among the settings: each has bounds, and says so in words that people understand."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel, ValidationError

from megatalker.errors import SettingsError
from megatalker.plugins import BackendRegistry
from megatalker.serving.client import RemoteEngine
from megatalker.settings import KeySettings, RaySettings, ServerSettings, Settings
from megatalker_pipecat.settings import MegatalkerTTSSettings


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ABSURD: list[object] = [
    1e308,
    10**12,
    float("nan"),
    float("inf"),
    -float("inf"),
    -1,
    True,
    "1e400",
    "9" * 5000,
    "nan",
    [1],
]


def numbers(model: type[BaseModel]) -> list[str]:
    """Names of the fields that hold numbers."""
    plain = {name: str(field.annotation) + str(field.metadata) for name, field in model.model_fields.items()}
    return [name for name, text in plain.items() if re.search(r"\b(int|float)\b|Ge\(|Gt\(", text)]


def read(table: str, name: str, value: object) -> None:
    whole: object = {name: value}
    for key in reversed(table.split(".") if table else []):
        whole = {key: whole}
    Settings.read(**cast("dict[str, Any]", whole))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:10])
@pytest.mark.parametrize(
    ("table", "model"),
    [("", Settings), ("server", ServerSettings), ("ray", RaySettings), ("server.keys.anna", KeySettings)],
)
def test_no_number_is_without_bounds(table: str, model: type[BaseModel], value: object) -> None:
    assert numbers(model), "there are numbers in it"
    for name in numbers(model):
        with pytest.raises(SettingsError, match=rf"{name}' (is|\()") as refused:
            read(table, name, value)
        assert "functools" not in str(refused.value)


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:10])
def test_no_number_of_a_backend_is_without_bounds(value: object) -> None:
    registry = BackendRegistry.installed()
    for model in (spec.settings for spec in (*registry.talkers, *registry.codecs)):
        for name in numbers(model):
            with pytest.raises(ValidationError, match=name):
                model.model_validate({name: value})


@pytest.mark.parametrize(
    ("name", "least", "most"), [("threads", 1, 1024), ("max_streams", 1, 4096), ("step_deadline_s", 0.5, 3600)]
)
def test_what_would_harm_the_machine_has_bounds_of_its_own(name: str, least: float, most: float) -> None:
    for value in (least, most):
        assert getattr(Settings.read(**{name: value}), name) == value
    with pytest.raises(SettingsError, match=f"setting '{name}' is .*less than or equal to {most}"):
        Settings.read(**{name: most + 1})


@pytest.mark.parametrize("value", [*ABSURD, "soon", None])
def test_times_of_clients_and_adapters_have_bounds(value: Any) -> None:
    for name in ("connect_timeout_s", "answer_timeout_s"):
        with pytest.raises(SettingsError, match=f"{name} is"):
            RemoteEngine("http://localhost:1", **{name: value})
    if value is not None:
        with pytest.raises(SettingsError, match="max_ahead_s is"):
            MegatalkerTTSSettings(max_ahead_s=value).check()

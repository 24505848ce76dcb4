"""Constructor arguments that other services take: what has a meaning is used, the rest is refused by name."""

from typing import Any

import pytest
from pipecat.transcriptions.language import Language

from megatalker import Checkpoint, Settings
from megatalker.errors import SettingsError
from megatalker_pipecat import MegatalkerTTSService
from session_stage import engine_on, fakes

Wanted = MegatalkerTTSService.Settings


def made(**given: Any) -> MegatalkerTTSService:
    return MegatalkerTTSService(engine_settings=Settings(), **given)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"voice": "vivian"}, "voice", "vivian"),
        ({"voice_id": "vivian"}, "voice", "vivian"),
        ({"model": "/some/where"}, "checkpoint", "/some/where"),
        ({"language": Language.DE}, "language", "german"),
    ],
)
def test_known_arguments_become_settings(given: dict[str, Any], field: str, value: str) -> None:
    settings = made(settings=Wanted(seed=4), **given).settings
    assert getattr(settings, field) == value
    assert settings.seed == 4  # type: ignore[attr-defined]


def test_the_settings_that_were_given_stay_as_they_were() -> None:
    shared = Wanted(seed=4)
    made(settings=shared, voice="vivian")
    assert shared == Wanted(seed=4)


@pytest.mark.parametrize("given", [{"voice": "a", "voice_id": "a"}, {"settings": Wanted(voice="a"), "voice": "b"}])
def test_a_setting_given_twice_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="voice is given twice"):
        made(**given)


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"api_key": "secret"}, r"engine=RemoteEngine\(url, api_key="),
        ({"speed": 1.2}, "Qwen3-TTS has no speed"),
        ({"params": None}, r"settings=MegatalkerTTSService\.Settings"),
        ({"base_url": "http://localhost"}, "server_url"),
        ({"seed": 4}, r"Settings\(seed="),
        ({"push_text_frames": True}, "leave it out"),
        ({"enginee": None}, "did you mean 'engine'"),
        ({"cartesia_version": "2024-06-10"}, "leave it out"),
    ],
)
def test_arguments_without_meaning_are_refused_by_name(given: dict[str, Any], instead: str) -> None:
    with pytest.raises(TypeError, match=f"'{next(iter(given))}': .*{instead}") as refused:
        made(**given)
    assert "secret" not in str(refused.value)


def test_arguments_of_pipecat_reach_it(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, name="mouth", stop_frame_timeout_s=1.5)
    assert service.name == "mouth"
    assert service._stop_frame_timeout_s == 1.5

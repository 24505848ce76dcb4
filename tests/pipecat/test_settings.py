"""Settings of the service: what they start from, what may be given, how languages are named."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loguru import logger
from pipecat.frames.frames import TTSSpeakFrame, TTSUpdateSettingsFrame
from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language

from megatalker import Checkpoint, Engine, SamplingParams, Settings, Voice
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.languages import NAMES, name_of, recognised
from pipecat_stage import pcm16, perform, turn
from session_stage import engine_on, fakes

Wanted = MegatalkerTTSService.Settings


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        yield engine


@pytest.fixture
def said() -> Iterator[list[str]]:
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(str(message)), level="WARNING", format="{message}")
    yield messages
    logger.remove(sink)


def test_all_settings_have_a_value_from_the_start() -> None:
    service = MegatalkerTTSService(engine_settings=Settings(backend="compiled", voice="ryan", max_ahead_s=2.0))
    assert dataclasses.asdict(service.settings) == {
        "model": "demo",
        "checkpoint": "demo",
        "backend": "compiled",
        "voice": "ryan",
        "language": "auto",
        "instruct": None,
        "seed": None,
        "sampling": None,
        "max_ahead_s": 2.0,
        "clean_text": True,
        "normalize": None,
        "markup": None,
        "cast": None,
        "lexicon": None,
        "extra": {},
    }


def test_settings_come_from_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "megatalker.toml").write_text('voice = "vivian"\n')
    monkeypatch.setenv("MEGATALKER_LANGUAGE", "german")
    settings = MegatalkerTTSService().settings
    assert (settings.voice, settings.language) == ("vivian", "german")
    monkeypatch.setenv("MEGATALKER_NONSENSE", "1")
    with pytest.raises(SettingsError, match="MEGATALKER_NONSENSE"):
        MegatalkerTTSService()


def test_model_is_another_name_for_checkpoint() -> None:
    by_model = MegatalkerTTSService(engine_settings=Settings(), settings=Wanted(model="/some/where"))
    by_checkpoint = MegatalkerTTSService(engine_settings=Settings(), settings=Wanted(checkpoint="/some/where"))
    assert by_model.settings == by_checkpoint.settings
    assert by_model.settings.model == "/some/where"
    with pytest.raises(SettingsError, match="give one of them"):
        MegatalkerTTSService(engine_settings=Settings(), settings=Wanted(model="a", checkpoint="b"))


def test_settings_of_pipecat_itself_are_taken() -> None:
    service = MegatalkerTTSService(engine_settings=Settings(), settings=TTSSettings(voice="ryan"))  # type: ignore[arg-type]
    assert service.settings.voice == "ryan"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_lead_is_refused(value: float) -> None:
    with pytest.raises(SettingsError, match="max_ahead_s"):
        MegatalkerTTSService(engine_settings=Settings(), settings=Wanted(max_ahead_s=value))


# ---- languages


@pytest.mark.parametrize(
    ("language", "name"),
    [(Language.EN, "english"), (Language.EN_US, "english"), (Language.ZH_TW, "chinese"), (Language.DE_AT, "german")],
)
def test_language_of_pipecat(language: Language, name: str) -> None:
    assert name_of(language) == name


def test_a_language_without_a_name_is_left_to_the_model_and_said(said: list[str]) -> None:
    assert name_of(Language.PL) == "auto"
    assert "pl" in said[0]


def test_every_named_language_is_one_of_the_checkpoint(tiny_custom_voice: Checkpoint) -> None:
    assert set(NAMES.values()) == {name for name in tiny_custom_voice.config.languages if not name.endswith("dialect")}


def test_names_are_recognised() -> None:
    assert recognised("German") is Language.DE
    assert recognised(Language.EN_GB) is Language.EN_GB
    assert recognised("auto") == "auto"
    assert recognised(None) is None


@pytest.mark.parametrize("language", [Language.JA, "japanese", "ja-JP"])
def test_sentences_are_cut_by_the_rules_of_the_language(language: Language | str) -> None:
    service = MegatalkerTTSService(engine_settings=Settings(), settings=Wanted(language=language))
    assert service.settings.language == "japanese"  # type: ignore[attr-defined]
    assert service.text_aggregation_language == "ja"


@pytest.mark.asyncio
async def test_sentence_rules_follow_a_change_of_language(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, settings=Wanted(language="english"))
    heard = await perform(service, [TTSUpdateSettingsFrame(delta=Wanted(language="german"))])
    assert not heard.up
    assert service.settings.language == "german"  # type: ignore[attr-defined]
    assert service.text_aggregation_language == "de"


# ---- what reaches the engine


@pytest.mark.asyncio
async def test_each_wish_reaches_the_engine(engine: Engine) -> None:
    sampling = SamplingParams(temperature=0.5, seed=1)
    service = MegatalkerTTSService(
        engine=engine,
        settings=Wanted(voice="Serena", language=Language.FR, sampling=sampling, seed=8),
    )
    heard = await perform(service, [TTSSpeakFrame("Bonjour.")])
    assert heard.audio() == pcm16(engine, "Bonjour.", voice="serena", language="french", sampling=sampling, seed=8)


@pytest.mark.asyncio
async def test_instruct_reaches_the_engine(tiny_1b7: Checkpoint) -> None:
    with engine_on(fakes(), tiny_1b7) as engine:
        service = MegatalkerTTSService(engine=engine, settings=Wanted(instruct="Whisper.", seed=8))
        change = TTSUpdateSettingsFrame(delta=Wanted(instruct=None))
        start, first, second, end = turn("One. ", "Two.")
        heard = await perform(service, [start, first, second, change, end])
        assert heard.audio() == pcm16(engine, "One.", instruct="Whisper.", seed=8) + pcm16(engine, "Two.", seed=8)


@pytest.mark.asyncio
async def test_voices_are_called_by_name(tiny_voice_design: Checkpoint) -> None:
    voices = {"anna": Voice.designed("A calm voice."), "ben": Voice.designed("A loud voice.")}
    with engine_on(fakes(), tiny_voice_design) as engine:
        service = MegatalkerTTSService(engine=engine, voices=voices, settings=Wanted(voice="anna", seed=8))
        change = TTSUpdateSettingsFrame(delta=Wanted(voice="ben"))
        heard = await perform(service, [TTSSpeakFrame("Hello."), change, TTSSpeakFrame("Hello.")])
        assert heard.audio() == b"".join(pcm16(engine, "Hello.", voice=voice, seed=8) for voice in voices.values())


@pytest.mark.asyncio
async def test_unknown_keys_are_named(engine: Engine, said: list[str]) -> None:
    service = MegatalkerTTSService(engine=engine)
    await perform(service, [TTSUpdateSettingsFrame(delta=Wanted(extra={"speed": 2}))])
    assert any("speed" in message for message in said)


@pytest.mark.asyncio
async def test_an_update_for_another_service_is_passed_on(engine: Engine) -> None:
    service, other = MegatalkerTTSService(engine=engine), MegatalkerTTSService(engine=engine)
    heard = await perform(service, [TTSUpdateSettingsFrame(delta=Wanted(voice="vivian"), service=other)])
    assert heard.named() == ["TTSUpdateSettingsFrame"]
    assert service.settings.voice is None  # type: ignore[attr-defined]


def test_the_service_s_own_voices_are_mixed_by_name() -> None:
    voices = {name: Voice(x_vector=torch.full((8,), value)) for name, value in (("anna", 1.0), ("a+b", 3.0))}

    def chosen(name: str) -> Any:
        return Wanted.complete(Settings(voice=name)).options(voices).voice

    mixed = chosen("anna:3+anna:1")
    assert mixed is voices["anna"]
    assert chosen("a+b") is voices["a+b"], "a whole name comes first"
    assert chosen("ryan:0.5+vivian:0.5") == "ryan:0.5+vivian:0.5", "the engine's speakers"
    with pytest.raises(InvalidRequestError, match="unknown voice 'ryan' in the mix"):
        chosen("anna+ryan")
    voices["bert"] = Voice(x_vector=torch.full((8,), 5.0))
    assert chosen("anna:0.75+bert:0.25").x_vector.tolist() == [2.0] * 8


@pytest.mark.asyncio
async def test_a_mixed_speaker_reaches_the_engine(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, settings=Wanted(voice="serena:0.6+ryan:0.4", seed=8))
    heard = await perform(service, [TTSSpeakFrame("Bonjour.")])
    assert heard.audio() == pcm16(engine, "Bonjour.", voice="serena:0.6+ryan:0.4", seed=8)
    assert heard.audio() != pcm16(engine, "Bonjour.", voice="serena", seed=8)

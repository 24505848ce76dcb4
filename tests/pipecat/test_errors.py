"""Behaviour of the service when the engine fails: frames, error category, and the fate of the next text."""

import threading
from dataclasses import replace

import pytest
from pipecat.frames.frames import ErrorFrame, TTSSpeakFrame, TTSUpdateSettingsFrame
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import SleepFrame
from pipecat.utils.errors import ErrorCategory

from megatalker import Checkpoint, Engine, Settings
from megatalker.errors import (
    BackendFaultError,
    BackendNotFoundError,
    CapacityError,
    CheckpointError,
    ConnectionFailedError,
    EngineClosedError,
    InvalidRequestError,
    SettingsError,
    UnsupportedError,
)
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from megatalker_pipecat.errors import category_of, category_of_text
from pipecat_stage import ServiceOutput, perform, service_with, turn
from serving import ENDLESS, endless
from session_stage import FRAMES, DecodeFault, engine_on, fakes, pool_of

MODES = list(TextAggregationMode)
CLOSED_ALONE = ["TTSStartedFrame", "TTSStoppedFrame"]


def errors(heard: ServiceOutput) -> list[ErrorFrame]:
    return [frame for frame in heard.up if isinstance(frame, ErrorFrame)]


def marks(heard: ServiceOutput) -> list[str]:
    return [name for name in heard.named() if name in ("TTSStartedFrame", "TTSAudioRawFrame", "TTSStoppedFrame")]


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_an_engine_that_fails_before_audio(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    with engine_on(fakes(on_decode=DecodeFault(0)), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        heard = await perform(service, [TTSSpeakFrame("One two three.")])
        assert marks(heard) == CLOSED_ALONE
        error = errors(heard)[0]
        assert isinstance(error.exception, BackendFaultError)
        assert error.category is ErrorCategory.SERVER
        assert "on fire" in error.error
        assert not service.is_usable, "no request to this engine can succeed"


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_an_engine_that_fails_in_the_middle(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    with engine_on(fakes(on_decode=DecodeFault(5)), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        heard = await perform(service, turn("One two three four."))
        assert heard.named()[0] == "LLMFullResponseStartFrame"
        assert heard.named()[-2:] == ["TTSStoppedFrame", "LLMFullResponseEndFrame"]
        assert len(heard.audio()) == 2 * 5 * 1920, "all frames before the failure are heard"
        (error,) = errors(heard)
        assert isinstance(error.exception, BackendFaultError)


@pytest.mark.asyncio
async def test_a_turn_that_failed_is_stopped_though_its_text_goes_on(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(on_decode=DecodeFault(0)), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(
            engine=engine, text_aggregation_mode=TextAggregationMode.TOKEN, stop_frame_timeout_s=0.1
        )
        start, first, second, end = turn("One two three. ", "Four.")
        heard = await perform(service, [start, first, SleepFrame(0.3), second, end])
        assert marks(heard)[:2] == CLOSED_ALONE
        assert marks(heard).count("TTSStartedFrame") == marks(heard).count("TTSStoppedFrame")


@pytest.mark.asyncio
async def test_after_a_fault_the_next_session_gets_a_new_engine(tiny_custom_voice: Checkpoint) -> None:
    fault, opened = DecodeFault(0), []
    plug_in = fakes(on_decode=fault)

    def open_engine(settings: Settings) -> Engine:
        opened.append(Engine.open(settings, checkpoint=tiny_custom_voice, registry=plug_in.registry))
        return opened[-1]

    service_class = service_with(EnginePool(open_engine))
    service = service_class(engine_settings=Settings())
    first = await perform(service, [TTSSpeakFrame("One.")])
    assert errors(first)
    fault.after = 1_000_000
    second = await perform(service_class(engine_settings=Settings()), [TTSSpeakFrame("One.")])
    assert not errors(second)
    assert len(second.audio()) == 2 * FRAMES * 1920
    assert len(opened) == 2


@pytest.mark.asyncio
async def test_a_change_of_settings_gives_a_service_without_engine_another_chance(
    tiny_custom_voice: Checkpoint,
) -> None:
    fault = DecodeFault(0)
    plug_in = fakes(on_decode=fault)

    def mend(frame: object) -> None:
        if isinstance(frame, ErrorFrame):
            fault.after = 1_000_000

    service = service_with(pool_of(plug_in, tiny_custom_voice))(engine_settings=Settings())
    service.add_event_handler("on_error", lambda _, error: mend(error))
    change = TTSUpdateSettingsFrame(delta=MegatalkerTTSService.Settings(seed=4))
    heard = await perform(service, [TTSSpeakFrame("One."), change, TTSSpeakFrame("Two.")])
    assert service.is_usable
    assert len(heard.audio()) == 2 * FRAMES * 1920


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_text_that_cannot_be_spoken_concerns_itself_only(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        raw = MegatalkerTTSService.Settings(clean_text=False)
        service = MegatalkerTTSService(engine=engine, settings=raw, text_aggregation_mode=mode)
        heard = await perform(service, turn("One two. ", "And <|im_end|> then. ", "Four five."))
        (error,) = errors(heard)
        assert isinstance(error.exception, InvalidRequestError)
        assert error.category is ErrorCategory.APPLICATION
        assert service.is_usable
        assert {"One", "two.", "Four", "five."} <= set(heard.words())
        assert marks(heard)[0] == "TTSStartedFrame"
        assert marks(heard)[-1] == "TTSStoppedFrame"


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_an_engine_that_is_full_is_a_passing_error(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    full = {**ENDLESS, "max_streams": 1, "max_waiting": 0}
    with engine_on(endless(), tiny_custom_voice, **full) as engine, engine.speak("On and on."):
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        heard = await perform(service, turn("One ", "two ", "three."))
        found = [error for error in errors(heard) if isinstance(error.exception, CapacityError)]
        assert [error.category for error in found] == [ErrorCategory.RATE_LIMIT], "told once, not for each token"
        assert service.is_usable
        assert marks(heard) == CLOSED_ALONE


@pytest.mark.asyncio
async def test_a_switch_of_backends_is_logged_and_inaudible(tiny_custom_voice: Checkpoint) -> None:
    from loguru import logger

    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING", format="{message}")
    plug_in = fakes(on_decode=DecodeFault(3))
    plug_in.talkers["spare"] = replace(plug_in.talkers["fake"], on_decode=lambda call: None)
    with engine_on(plug_in, tiny_custom_voice, backend="fake") as engine:
        heard = await perform(MegatalkerTTSService(engine=engine), [TTSSpeakFrame("One two three.")])
    logger.remove(sink)
    assert len(heard.audio()) == 2 * FRAMES * 1920
    assert not heard.up
    assert any("fake -> spare" in message for message in said)


@pytest.mark.parametrize(
    ("error", "of_settings", "of_text"),
    [
        (InvalidRequestError("x"), ErrorCategory.INVALID_REQUEST, ErrorCategory.APPLICATION),
        (UnsupportedError("x"), ErrorCategory.INVALID_REQUEST, ErrorCategory.APPLICATION),
        (SettingsError("x"), ErrorCategory.INVALID_REQUEST, ErrorCategory.APPLICATION),
        (CheckpointError("x"), ErrorCategory.INVALID_REQUEST, ErrorCategory.APPLICATION),
        (BackendNotFoundError("x"), ErrorCategory.INVALID_REQUEST, ErrorCategory.APPLICATION),
        (CapacityError("x"), ErrorCategory.RATE_LIMIT, ErrorCategory.RATE_LIMIT),
        (BackendFaultError("x"), ErrorCategory.SERVER, ErrorCategory.SERVER),
        (EngineClosedError("x"), ErrorCategory.SERVER, ErrorCategory.SERVER),
        (ConnectionFailedError("x"), ErrorCategory.CONNECTIVITY, ErrorCategory.CONNECTIVITY),
        (RuntimeError("x"), None, None),
    ],
)
def test_categories(error: Exception, of_settings: ErrorCategory | None, of_text: ErrorCategory | None) -> None:
    assert category_of(error) is of_settings
    assert category_of_text(error) is of_text


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_the_engine_is_closed_under_the_session(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    with engine_on(fakes(frames=None), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        closing = threading.Thread(target=engine.close)

        def close(frame: object) -> None:
            if not closing.ident:
                closing.start()

        heard = await perform(service, turn("One two three four."), watch=close)
        closing.join()
        assert isinstance(errors(heard)[0].exception, EngineClosedError)
        assert marks(heard)[-1] == "TTSStoppedFrame"

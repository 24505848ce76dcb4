"""Engines of a process: opened once, off the event loop, closed by the last session; servers; what goes wrong."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from loguru import logger
from pipecat.frames.frames import ErrorFrame, TTSSpeakFrame, TTSUpdateSettingsFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory
from pipecat.workers.runner import WorkerRunner

from fake_backend import Behaviour, Fakes
from megatalker import Checkpoint, Engine, Settings, SpeechOptions
from megatalker.errors import BackendNotFoundError, BackendUnavailableError, SettingsError
from megatalker.serving.processes import ProcessEngine
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from pipecat_stage import HANG_S, perform, service_with, turn, when_first_heard
from session_stage import FRAMES, engine_on, fakes

pytestmark = pytest.mark.asyncio
SECONDS = FRAMES * 0.08


@pytest.fixture
def warnings_said() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING", format="{message}")
    yield said
    logger.remove(sink)


class Opener:
    """Opens engines on fakes when it is let; remembers them."""

    def __init__(self, plug_in: Fakes, checkpoint: Checkpoint) -> None:
        self.plug_in, self.checkpoint, self.let = plug_in, checkpoint, threading.Event()
        self.let.set()
        self.engines: list[Engine] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, settings: Settings) -> Engine:
        self.threads.append(threading.current_thread())
        assert self.let.wait(HANG_S)
        engine = Engine.open(settings, checkpoint=self.checkpoint, registry=self.plug_in.registry)
        self.engines.append(engine)
        return engine


@pytest.mark.slow
async def test_an_engine_may_have_a_process_of_its_own(tiny_custom_voice: Checkpoint) -> None:
    where = {"checkpoint": str(tiny_custom_voice.folder), "backend": "reference", "device": "cpu"}
    options = SpeechOptions(seed=3, max_frames=4)
    async with await EnginePool().lease(Settings(**where, engine_process=True)) as lease:
        assert isinstance(lease.engine, ProcessEngine)
        assert lease.engine.processes[0].pid != os.getpid()
        said = [chunk.pcm async for chunk in await lease.speak("Hello there.", options)]
    with Engine.open(**where) as engine:
        expected = [chunk.pcm async for chunk in engine.speak("Hello there.", options)]
    assert np.array_equal(np.concatenate(said), np.concatenate(expected))


@pytest.fixture
def opener(tiny_custom_voice: Checkpoint) -> Iterator[Opener]:
    opener = Opener(Fakes(talkers={"fake": Behaviour(frames=FRAMES), "other": Behaviour(frames=3)}), tiny_custom_voice)
    yield opener
    for engine in opener.engines:
        engine.close()


@pytest.fixture
def service_class(opener: Opener) -> type[MegatalkerTTSService]:
    return service_with(EnginePool(opener))


def closed(engine: Engine) -> bool:
    return engine.failure is not None


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# ---- sharing


async def test_an_engine_is_loaded_off_the_event_loop_before_the_bot_is_ready(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    opener.let.clear()
    running = asyncio.create_task(
        perform(service_class(engine_settings=Settings()), [TTSSpeakFrame("Hello.")], start_timeout=HANG_S)
    )
    await until(lambda: bool(opener.threads))  # the loop runs while the load waits
    assert opener.threads[0] is not threading.main_thread()
    opener.let.set()
    assert (await running).words() == ["Hello."]


async def test_leases_share_an_engine_until_the_last_is_released(opener: Opener) -> None:
    pool = EnginePool(opener)
    first, second = await asyncio.gather(pool.lease(Settings()), pool.lease(Settings(language="german")))
    assert first.engine is second.engine
    await first.release()
    await first.release()
    assert not closed(opener.engines[0])
    await second.release()
    assert closed(opener.engines[0])
    async with await pool.lease(Settings()) as third:
        assert third.engine is not first.engine


async def test_other_settings_are_another_engine(opener: Opener) -> None:
    pool = EnginePool(opener)
    async with await pool.lease(Settings()) as first, await pool.lease(Settings(max_streams=2)) as second:
        assert first.engine is not second.engine


async def test_preloaded_engine_outlives_sessions(opener: Opener, service_class: type[MegatalkerTTSService]) -> None:
    lease = await service_class.preload(Settings(backend="fake"))
    for _ in range(2):
        await perform(service_class(engine_settings=Settings(backend="fake")), [TTSSpeakFrame("Hello.")])
    assert opener.engines == [lease.engine]
    assert not closed(opener.engines[0])
    await lease.release()
    assert closed(opener.engines[0])


async def test_preload_takes_the_settings_of_the_service(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    wanted = service_class.Settings(backend="other", voice="vivian")
    async with await service_class.preload(settings=wanted):
        heard = await perform(service_class(settings=wanted), [TTSSpeakFrame("Hello.")])
    assert len(opener.engines) == 1
    assert len(heard.audio()) == 2 * 3 * 1920


async def test_engine_of_the_caller_stays_open(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        for _ in range(2):
            await perform(MegatalkerTTSService(engine=engine), [TTSSpeakFrame("Hello.")])
        assert not closed(engine)


async def test_a_failed_load_is_told_to_all_and_tried_again(opener: Opener) -> None:
    pool, opener.plug_in.unavailable["fake"] = EnginePool(opener), "no luck today"
    answers = await asyncio.gather(*(pool.lease(Settings(backend="fake")) for _ in range(2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [BackendUnavailableError] * 2
    opener.plug_in.unavailable.clear()
    async with await pool.lease(Settings(backend="fake")) as lease:
        assert not closed(lease.engine)  # type: ignore[arg-type]


async def test_whoever_sees_a_load_fail_finds_the_lease_failed(opener: Opener) -> None:
    pool, opener.plug_in.unavailable["fake"] = EnginePool(opener), "no luck today"
    opener.let.clear()
    lease, found = pool.begin(Settings(backend="fake")), list[bool]()
    lease._loading.add_done_callback(lambda _: found.append(lease.failed))
    opener.let.set()
    with pytest.raises(BackendUnavailableError):
        await lease.loaded()
    assert found == [True], "or the next request would wait for the same failure again"
    await lease.release()


async def test_giving_up_a_load_does_not_disturb_others(opener: Opener) -> None:
    pool = EnginePool(opener)
    opener.let.clear()
    patient, impatient = (asyncio.create_task(pool.lease(Settings())) for _ in range(2))
    await until(lambda: bool(opener.threads))
    impatient.cancel()
    await asyncio.wait([impatient])
    opener.let.set()
    async with await patient as lease:
        assert not closed(lease.engine)  # type: ignore[arg-type]


async def test_an_engine_without_waiting_sessions_is_closed(opener: Opener) -> None:
    pool = EnginePool(opener)
    opener.let.clear()
    waiting = asyncio.create_task(pool.lease(Settings()))
    await until(lambda: bool(opener.threads))
    waiting.cancel()
    opener.let.set()
    await until(lambda: bool(opener.engines) and closed(opener.engines[0]))


async def test_a_pipeline_that_cannot_wait_says_what_to_do(
    opener: Opener, service_class: type[MegatalkerTTSService], warnings_said: list[str]
) -> None:
    opener.let.clear()
    worker = PipelineWorker(
        Pipeline([service_class(engine_settings=Settings())]), setup_timeout_secs=0.2, cancel_on_idle_timeout=False
    )
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.wait_for(runner.run(), HANG_S)
    assert any("preload" in said and "'demo'" in said and "not ready" in said for said in warnings_said)
    opener.let.set()
    await until(lambda: bool(opener.engines) and closed(opener.engines[0]))


async def test_an_engine_that_cannot_be_had_is_a_permanent_error(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    service = service_class(engine_settings=Settings(backend="missing"))
    heard = await perform(service, [TTSSpeakFrame("Hello.")])
    errors = [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    assert [type(error.exception) for error in errors] == [BackendNotFoundError]
    assert errors[0].category is ErrorCategory.INVALID_REQUEST
    assert "missing" in errors[0].error
    assert not service.is_usable
    assert not heard.audio()


# ---- switching


async def test_another_backend_at_run_time_is_another_engine(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    start, first, second, end = turn("One two. ", "Three four.")
    change = TTSUpdateSettingsFrame(delta=service_class.Settings(backend="other"))
    heard = await perform(service_class(engine_settings=Settings(backend="fake")), [start, first, second, change, end])
    assert len(heard.audio()) == 2 * 1920 * (FRAMES + 3)
    assert [engine.backend for engine in opener.engines] == ["fake", "other"]
    assert all(map(closed, opener.engines))


async def test_sessions_that_stay_keep_the_old_engine(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    async with await service_class.preload(Settings(backend="fake")):
        change = TTSUpdateSettingsFrame(delta=service_class.Settings(backend="other"))
        await perform(service_class(engine_settings=Settings(backend="fake")), [change, TTSSpeakFrame("One.")])
        old, new = opener.engines
        assert closed(new)
        assert not closed(old)


async def test_speech_of_the_old_engine_is_finished_before_it_is_closed(
    opener: Opener, service_class: type[MegatalkerTTSService]
) -> None:
    """In TOKEN mode the change comes while the turn is still being spoken."""
    start, text, end = turn("One two three.")
    change = TTSUpdateSettingsFrame(delta=service_class.Settings(backend="other"))
    service = service_class(
        engine_settings=Settings(backend="fake", max_chunk_frames=1), text_aggregation_mode=TextAggregationMode.TOKEN
    )
    heard = await perform(service, [start, text], hear=when_first_heard(change, end, TTSSpeakFrame("Four.")))
    assert len(heard.audio()) == 2 * 1920 * (FRAMES + 3)
    assert heard.words() == ["One", "two", "three.", "Four."]
    assert not heard.up
    assert all(map(closed, opener.engines))


@pytest.mark.parametrize(
    ("delta", "complaint"),
    [
        ({"backend": "missing"}, "missing"),
        ({"voice": "nobody"}, "nobody"),
        ({"backend": "other", "voice": "nobody"}, "nobody"),
        ({"language": "klingon"}, "klingon"),
        ({"seed": -1}, "seed"),
        ({"model": "demo", "checkpoint": "another"}, "the same"),
        ({"max_ahead_s": 0.0}, "max_ahead_s"),
        ({"sampling": 0.7}, "sampling"),
        ({"checkpoint": "/nowhere"}, "/nowhere"),
    ],
)
async def test_settings_that_cannot_be_had_change_nothing_and_are_reported(
    service_class: type[MegatalkerTTSService], opener: Opener, delta: dict[str, Any], complaint: str
) -> None:
    def open_engine(settings: Settings) -> Engine:
        if settings.checkpoint != "demo":
            return Engine.open(settings)
        return opener(settings)

    service_class.engines = EnginePool(open_engine)
    service = service_class(engine_settings=Settings(backend="fake", language="english"))
    before = service.settings.copy()
    change = TTSUpdateSettingsFrame(delta=service_class.Settings(**delta))
    heard = await perform(service, [change, TTSSpeakFrame("One.")])
    (error,) = heard.up
    assert isinstance(error, ErrorFrame)
    assert complaint in error.error
    assert error.category is ErrorCategory.APPLICATION
    assert service.settings == before
    assert heard.words() == ["One."], "speech goes on as before"
    assert all(map(closed, opener.engines))


# ---- what was asked for together


async def test_only_one_source_of_speech(tiny_custom_voice: Checkpoint) -> None:
    with (
        engine_on(fakes(), tiny_custom_voice) as engine,
        pytest.raises(SettingsError, match="engine and server_url"),
    ):
        MegatalkerTTSService(engine=engine, server_url="http://localhost:1")

"""Engines of sessions warm up as a server's does: early, and nobody's pipeline is given up for it."""

import asyncio
import threading
from typing import Any

import pytest
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame

import megatalker
from fake_backend import Behaviour, Fakes
from megatalker import Checkpoint, Engine, Settings
from megatalker.errors import BackendUnavailableError
from megatalker_pipecat import EnginePool, MegatalkerTTSService, service
from pipecat_stage import HANG_S, perform, service_with
from session_stage import FRAMES

pytestmark = pytest.mark.asyncio


class WarmUp:
    """A warm-up that takes as long as a test wants."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.entered.set()
        assert self.go_on.wait(HANG_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def warm_up() -> WarmUp:
    return WarmUp()


@pytest.fixture
def plug_in(warm_up: WarmUp, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Plug-ins for engines that are opened by their settings alone."""
    fakes = Fakes(talkers={"fake": Behaviour(frames=FRAMES, on_warmup=warm_up)})

    def opened(settings: Settings, **_: Any) -> Engine:
        return Engine(settings, tiny_custom_voice, fakes.registry)

    monkeypatch.setattr(megatalker.Engine, "open", opened)
    return fakes


@pytest.mark.parametrize(("setting", "early"), [(None, True), ("first", True), ("all", False)])
async def test_a_session_warms_up_early_unless_told_otherwise(
    plug_in: Fakes, warm_up: WarmUp, setting: Any, early: bool
) -> None:
    warm_up.go_on.set()
    lease = await EnginePool().lease(Settings(warmup=setting))
    assert plug_in.loaded["fake"].early is early
    assert plug_in.loaded["fake"].warmed == 1
    await lease.release()


async def test_an_engine_is_there_before_it_is_warm(plug_in: Fakes, warm_up: WarmUp) -> None:
    pool, settings = EnginePool(), Settings()
    lease = pool.begin(settings)
    engine = await lease.loaded()
    assert await asyncio.to_thread(warm_up.entered.wait, HANG_S)
    stream = await lease.speak("Hello there.", megatalker.SpeechOptions())
    assert not pool.holds(settings)
    warm_up.go_on.set()
    assert await lease.warm() is engine
    assert pool.holds(settings)
    assert sum([chunk.frames async for chunk in stream]) == FRAMES
    await lease.release()
    assert engine.failure is not None, "closed by the last session"


async def test_a_warm_up_that_fails_leaves_nothing_behind(plug_in: Fakes, warm_up: WarmUp) -> None:
    pool, settings = EnginePool(), Settings(backend="fake")
    warm_up.error = RuntimeError("no compiler")
    warm_up.go_on.set()
    with pytest.raises(BackendUnavailableError, match="no compiler"):
        await pool.lease(settings)
    warm_up.error = None
    lease = await pool.lease(settings)
    assert not lease.failed
    await lease.release()


async def test_a_pipeline_does_not_wait_for_a_long_warm_up(
    plug_in: Fakes, warm_up: WarmUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WARM_UP_S", 0.05)

    service_class = service_with(EnginePool())
    set_up = service_class.setup

    async def and_then_go_on(self: MegatalkerTTSService, setup: Any) -> None:
        await set_up(self, setup)
        assert not warm_up.go_on.is_set(), "the pipeline is set up before"
        warm_up.go_on.set()

    monkeypatch.setattr(service_class, "setup", and_then_go_on)
    heard = await perform(service_class(engine_settings=Settings()), [TTSSpeakFrame("Hello there.")])
    rate = heard.of(TTSAudioRawFrame)[0].sample_rate
    assert len(heard.audio()) == FRAMES * 0.08 * rate * 2
    assert not heard.of(ErrorFrame)

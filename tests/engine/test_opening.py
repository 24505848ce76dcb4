"""Engines on fake backends within event loops, and how they are opened."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from engine_stage import TEXT, Opener, fakes_with
from fake_backend import Behaviour, FakeCodec, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import (
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    SettingsError,
)
from megatalker.settings import Settings
from waiting import HANG_S

# ---- asyncio


def test_async_iteration_from_two_event_loops_at_once(open_engine: Opener) -> None:
    engine = open_engine()

    async def listen(seed: int) -> int:
        return sum([chunk.frames async for chunk in engine.speak(TEXT, seed=seed)])

    async def several() -> list[int]:
        return await asyncio.gather(*(listen(seed) for seed in range(4)))

    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(several()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert results == [[30] * 4] * 2


def test_leaving_an_async_block_cancels(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False)

    async def listen() -> tuple[SpeechStream, SpeechStream]:
        async with engine.speak(TEXT) as first:
            await anext(first)
        async with aclosing(engine.speak(TEXT)) as second:
            async for _ in second:
                break
        return first, second

    assert [stream.finish_reason for stream in asyncio.run(listen())] == ["cancelled", "cancelled"]


# ---- opening


def test_warmup_reaches_both_backends_and_metrics_name_them(open_engine: Opener) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)
    engine.warmup()
    assert fakes.loaded["fake"].warmed == 1
    assert (engine.metrics().backend, engine.metrics().codec) == ("fake", "noise")


def test_backends_are_lent_between_streams_only(open_engine: Opener) -> None:
    engine = open_engine()
    stream = engine.speak(None)
    with pytest.raises(CapacityError, match="running"), engine.borrow_backends():
        pass
    stream.cancel()
    with engine.borrow_backends() as (talker, codec):
        assert isinstance(talker.decoder, FakeTalker)
        assert isinstance(codec.codec, FakeCodec)


def test_a_backend_asked_for_by_name_that_cannot_load_is_an_error(open_engine: Opener) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    fakes = Fakes(talkers={"broken": Behaviour(on_load=broken), "fake": Behaviour()})
    with pytest.raises(BackendUnavailableError, match=r"'broken' failed to load: RuntimeError: out of memory"):
        open_engine(fakes, backend="broken")
    engine = open_engine(fakes)
    assert engine.backend == "fake"
    assert "out of memory" in engine.metrics().faulty["talker broken"]
    with pytest.raises(BackendUnavailableError, match="out of memory"):
        open_engine(fakes, fallbacks=())


def test_wrong_backend_settings_are_named(open_engine: Opener) -> None:
    with pytest.raises(SettingsError, match=r"backends\.fake\.speed"):
        open_engine(backends={"fake": {"speed": 3}})
    with pytest.raises(SettingsError, match=r"unknown setting .codecs\.fake."):
        open_engine(codecs={"fake": {}})


def test_single_settings_override_the_rest(tiny_custom_voice: Checkpoint) -> None:
    settings = Settings(max_streams=3, max_frames=7)
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=Fakes().registry, max_frames=9) as engine:
        assert (engine.settings.max_streams, engine.settings.max_frames) == (3, 9)


@pytest.mark.parametrize("named", [str, Path])
def test_a_checkpoint_may_be_named(tiny_custom_voice: Checkpoint, named: Callable[[Path], str | Path]) -> None:
    folder = tiny_custom_voice.folder
    with Engine.open(Settings(max_frames=7), checkpoint=named(folder), registry=Fakes().registry) as engine:
        assert engine.checkpoint.folder == folder
        assert (engine.settings.checkpoint, engine.settings.max_frames) == (str(folder), 7)


def test_a_damaged_checkpoint_is_no_fault_of_its_backend(open_engine: Opener) -> None:
    def damaged() -> None:
        raise CheckpointError("model.safetensors: 'talker.model.norm.weight' holds NaN or infinity")

    fakes = Fakes(talkers={"first": Behaviour(on_load=damaged), "second": Behaviour()})
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        open_engine(fakes)
    assert "second" not in fakes.loaded

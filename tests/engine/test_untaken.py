"""``max_untaken_s``: a stream waits for a consumer that does not take what was made, and goes on when it does."""

import asyncio

import numpy as np
import pytest

from engine_stage import EngineClock
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.errors import BackendFaultError, EngineClosedError
from megatalker.settings import Settings
from waiting import HANG_S, eventually, stands_still

TEXT = "Hello there, this is a sentence of a few words."
FRAMES, LIMIT_S = 400, 0.4

pytestmark = pytest.mark.usefixtures("arrival")


def open_engine(checkpoint: Checkpoint, fakes: Fakes, **settings: object) -> Engine:
    return Engine.open(Settings(**settings), checkpoint=checkpoint, registry=fakes.registry)


def frames_when_it_stands_still(fakes: Fakes) -> int:
    calls = fakes.loaded["fake"].calls
    eventually(lambda: stands_still(calls), "the engine waits for the consumer")
    return len(calls)


@pytest.mark.slow
def test_a_stream_waits_for_its_consumer_and_loses_nothing(
    tiny_custom_voice: Checkpoint, engine_clock: EngineClock
) -> None:
    fakes = Fakes(talkers={"fake": Behaviour(frames=FRAMES)})
    with open_engine(tiny_custom_voice, fakes, max_untaken_s=LIMIT_S) as engine:
        stream = engine.speak(TEXT, seed=1)
        made = frames_when_it_stands_still(fakes)
        assert LIMIT_S <= made * 0.08 <= LIMIT_S + 8 * 0.08, "the limit, and at most one chunk more"
        neighbour = engine.speak(TEXT, seed=2).read_all()
        assert len(neighbour) == FRAMES * 1920, "others do not wait with it"
        engine_clock.passed_s += 2 * LIMIT_S  # a player would have run dry long ago
        spoken = stream.read_all()
        assert stream.facts().underruns == 0, "whose fault it was"
    with open_engine(tiny_custom_voice, Fakes(talkers={"fake": Behaviour(frames=FRAMES)})) as engine:
        np.testing.assert_array_equal(spoken, engine.speak(TEXT, seed=1).read_all())


def test_an_event_loop_wakes_it_up_as_well(tiny_custom_voice: Checkpoint) -> None:
    fakes = Fakes(talkers={"fake": Behaviour(frames=FRAMES)})

    async def slowly(engine: Engine) -> int:
        frames = 0
        async with engine.speak(TEXT) as stream:
            async for chunk in stream:
                frames += chunk.frames
                await asyncio.sleep(0.001)
        return frames

    with open_engine(tiny_custom_voice, fakes, max_untaken_s=0.1) as engine:
        assert asyncio.run(asyncio.wait_for(slowly(engine), HANG_S)) == FRAMES


def test_a_waiting_stream_can_be_cancelled(tiny_custom_voice: Checkpoint) -> None:
    fakes = Fakes(talkers={"fake": Behaviour(frames=None)})
    with open_engine(tiny_custom_voice, fakes, max_untaken_s=0.5, max_frames=100_000) as engine:
        stream = engine.speak(TEXT)
        frames_when_it_stands_still(fakes)
        stream.cancel()
        eventually(lambda: not fakes.loaded["fake"].streams, "its place is free again")


def test_without_a_limit_everything_is_made(tiny_custom_voice: Checkpoint) -> None:
    fakes = Fakes(talkers={"fake": Behaviour(frames=FRAMES)})
    with open_engine(tiny_custom_voice, fakes) as engine:
        stream = engine.speak(TEXT)
        eventually(lambda: stream.finish_reason is not None, "all of it is made")
        assert len(stream.read_all()) == FRAMES * 1920


def test_an_engine_knows_why_it_serves_no_more(tiny_custom_voice: Checkpoint) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("on fire")

    with open_engine(tiny_custom_voice, Fakes()) as engine:
        assert engine.failure is None
        engine.speak(TEXT).read_all()
        assert engine.failure is None
    assert isinstance(engine.failure, EngineClosedError)
    with open_engine(tiny_custom_voice, Fakes(talkers={"fake": Behaviour(on_decode=fail)})) as engine:
        with pytest.raises(BackendFaultError):
            engine.speak(TEXT).read_all()
        assert isinstance(engine.failure, BackendFaultError)

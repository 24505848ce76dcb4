"""The benchmark of the engine's own processor time runs, and adds up."""

import asyncio
from collections.abc import Sequence

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.plugins import BackendRegistry
from megatalker.settings import Settings
from megatalker_benchmarks.engine_host import StandIns, burst, listen


@pytest.mark.parametrize("lead_s", [None, 1.0])
@pytest.mark.slow
def test_it_tells_processor_time_a_frame(tiny_custom_voice: Checkpoint, lead_s: float | None) -> None:
    registry = BackendRegistry([("stand-ins", StandIns(paced=lead_s is not None))])
    settings = Settings(max_streams=4, max_frames=2**20, max_segment_frames=2**20)
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=registry) as engine:
        figures = asyncio.run(listen(engine, 4, 0.5, lead_s))
    wanted: Sequence[str] = ("frames_a_second", "frames_a_chunk", "engine_us_a_frame", "engine_cores")
    assert all(figures[name] > 0 for name in wanted)
    assert figures["process_us_a_frame"] >= figures["engine_us_a_frame"]


@pytest.mark.slow
def test_it_tells_when_those_who_come_at_once_are_heard(tiny_custom_voice: Checkpoint) -> None:
    registry = BackendRegistry([("stand-ins", StandIns(paced=False))])
    with Engine.open(Settings(max_streams=4), checkpoint=tiny_custom_voice, registry=registry) as engine:
        first = asyncio.run(burst(engine, 6, times=2))["first_chunk_ms"]
    assert 0 < first["p50"] <= first["p95"] <= first["max"]

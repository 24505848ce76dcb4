"""The benchmark of the engine's own processor time runs, and adds up."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.drive import Script, drive, listening_to
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine import Engine
from megatalker.plugins import BackendRegistry
from megatalker.serving.client import RemoteEngine
from megatalker.settings import Settings
from megatalker_benchmarks.engine_host import StandIns, arrivals, burst, listen
from megatalker_benchmarks.ready_line import wait_until_ready
from megatalker_benchmarks.timed_device import AUDIO, FRAMES, PROMPTS, TimedDevice


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
def test_it_measures_first_chunks_of_simultaneous_requests(tiny_custom_voice: Checkpoint) -> None:
    registry = BackendRegistry([("stand-ins", StandIns(paced=False))])
    with Engine.open(Settings(max_streams=4), checkpoint=tiny_custom_voice, registry=registry) as engine:
        first = asyncio.run(burst(engine, 6, times=2))["first_chunk_ms"]
    assert 0 < first["p50"] <= first["p95"] <= first["max"]


@pytest.mark.slow
def test_it_tells_when_they_are_heard_where_launches_take_time(tiny_custom_voice: Checkpoint) -> None:
    """A prompt, a frame and its audio, one after another, and on a slower device later."""
    settings = Settings(dtype="bfloat16", max_streams=2)
    heard = []
    for speed in (1.0, 0.05):
        device = TimedDevice(speed)
        registry = BackendRegistry([("stand-ins", StandIns(paced=False, device=device))])
        with device.in_use(), Engine.open(settings, checkpoint=tiny_custom_voice, registry=registry) as engine:
            heard.append(asyncio.run(burst(engine, 2, times=5))["first_chunk_ms"])
    least_ms = PROMPTS[1][0] + FRAMES[1][0] + AUDIO[1][0]
    assert heard[0]["p50"] > least_ms
    assert heard[1]["p50"] > 20 * least_ms


@pytest.mark.slow
def test_it_measures_listeners_that_arrive_at_random(tiny_custom_voice: Checkpoint) -> None:
    device, settings = TimedDevice(), Settings(dtype="bfloat16", max_streams=8)
    registry = BackendRegistry([("stand-ins", StandIns(paced=False, device=device))])
    with device.in_use(), Engine.open(settings, checkpoint=tiny_custom_voice, registry=registry) as engine:
        figures = asyncio.run(arrivals(engine, 4.0, 2.0))
    assert figures["errors"] == {}
    assert figures["requests"] > 1
    assert figures["first_chunk_ms"]["p50"] > PROMPTS[1][0] + FRAMES[1][0] + AUDIO[1][0]
    assert figures["speech_s_per_s"] > 1


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted() -> None:
    options = ["--streams", "4", "--megakernel", "--serve", "0"]
    command = [sys.executable, "-m", "megatalker_benchmarks.engine_host", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            with RemoteEngine(wait_until_ready(server.stderr)["url"]) as engine:
                heard = asyncio.run(drive(listening_to(engine), Traffic("burst", 2), Script(length_s=0.4), 3.0))
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()
    assert [player.error for player in heard.playbacks] == [None, None]
    assert [player.audio_s for player in heard.playbacks] == pytest.approx([0.4, 0.4])
    assert server.returncode == 0

"""Processor time that the engine itself takes for a frame of one stream: ``megatalker bench engine-host --help``.

Talker and codec are stand-ins that compute nothing. Without ``--pace`` the engine runs as fast as it can, all streams
in every step. With it they keep one second ahead of playback, and a step of the talker sleeps as long as a GPU would.
With ``--burst N``, N texts come at one moment, again and again: how long until their first chunks. With
``--megakernel`` as well, the talker is the host's side of the megakernel, and launches take as long as those of an
H200, or less with ``--device-speed``: 2.5 is what a host of 2.5 times this one's slowness sees. With ``--rate`` instead
of ``--burst`` requests of 4 s of speech come at random moments, and are played in real time. With ``--serve`` the
engine waits behind a server for ``megatalker load --url``, until it is interrupted.
"""

import argparse
import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

import megatalker.plugins
from megatalker import Checkpoint, Engine, Settings
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.cli.bench.drive import Script, drive, listening_to
from megatalker.cli.bench.load_report import LoadCase
from megatalker.cli.bench.report import percentiles_ms
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine.interpreter import spare_what_is_loaded, switch_threads_often
from megatalker.interfaces import (
    Codec,
    CodecBackend,
    CodecCapabilities,
    CodecState,
    DecodeStep,
    Frame,
    Limit,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import BackendRegistry
from megatalker.serving.server.address import bind
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.logs import configure_logging
from megatalker.serving.server.process import TalkServer
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_backends.megakernel.decoder import CAPABILITIES
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_benchmarks.timed_device import DISTINCT, TimedDevice

TEXT = "The small boats sail home before it gets dark and cold."
LEAD_S = 1.0
STEP_S = 10e-3
"""Seconds of a step of the talker, with ``--pace``."""


class IdleTalker(TalkerDecoder):
    """Chooses the next of a few prepared frames; speech never ends."""

    def __init__(self, groups: int, paced: bool) -> None:
        self._frames = [tuple((7 * frame + group) % 32 for group in range(groups)) for frame in range(DISTINCT)]
        self._paced, self._issued, self._steps = paced, 0, 0

    @property
    def capabilities(self) -> TalkerCapabilities:
        return TALKER

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        first, self._issued = self._issued + 1, self._issued + len(requests)
        return [StreamHandle(handle) for handle in range(first, self._issued + 1)]

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        assert not return_logits
        ends_at = time.monotonic() + (STEP_S if self._paced else 0.0)
        self._steps += 1
        codes = self._frames[self._steps % DISTINCT]

        def finish() -> list[Frame]:
            time.sleep(max(0.0, ends_at - time.monotonic()))
            return [Frame(step.stream, codes) for step in steps]

        return finish

    def release(self, stream: StreamHandle) -> None:
        pass


class IdleState(CodecState):
    """Empty state: this codec carries nothing from step to step."""

    def copy(self) -> Self:
        return type(self)()


class IdleCodec(Codec):
    """Hands out the same noise for all."""

    def __init__(self) -> None:
        self._noise = torch.rand(64 * FRAME_SAMPLES) - 0.5

    @property
    def capabilities(self) -> CodecCapabilities:
        return CODEC

    def open(self) -> IdleState:
        return IdleState()

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        assert len(states) == len(codes)
        return [self._noise[: len(fresh) * FRAME_SAMPLES] for fresh in codes]


TALKER = TalkerCapabilities(
    devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32}),
    max_streams=Limit.NONE,
    max_positions=Limit.NONE,
    batch=True,
)
CODEC = CodecCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))


@dataclass
class StandIns:
    """Offers the idle talker and codec to an engine."""

    paced: bool
    device: TimedDevice | None = None
    """Device of the megakernel's host side, which is the talker then."""

    @megatalker.plugins.hookimpl
    def megatalker_backends(self) -> list[TalkerBackend | CodecBackend]:
        common: dict[str, Any] = {"name": "idle", "summary": "computes nothing", "api_version": 2}
        talker = TalkerBackend(
            **common,
            capabilities=TALKER,
            load=lambda checkpoint, _: IdleTalker(checkpoint.config.num_code_groups, self.paced),
        )
        if self.device is not None:
            talker = TalkerBackend(**common, capabilities=CAPABILITIES, load=self.device.decoder)
        return [
            talker,
            CodecBackend(**common, capabilities=CODEC, load=lambda *_: IdleCodec()),
        ]


@dataclass(slots=True)
class Reading:
    """Time, frames and chunks used until now."""

    wall_s: float
    worker_s: float
    process_s: float
    frames: int
    chunks: int

    @classmethod
    def take(cls, engine: Engine) -> Self:
        (worker,) = (thread for thread in threading.enumerate() if thread.name.startswith("megatalker-worker"))
        assert worker.ident is not None
        metrics = engine.metrics()
        return cls(
            time.monotonic(),
            time.clock_gettime(time.pthread_getcpuclockid(worker.ident)),
            time.process_time(),
            metrics.frames,
            metrics.chunks,
        )


async def listen(engine: Engine, streams: int, seconds: float, lead_s: float | None) -> dict[str, Any]:
    """Take the chunks of endless streams; figures of the time after the first chunks."""
    begun = 0

    async def take(stream: Any) -> None:
        nonlocal begun
        async for chunk in stream:
            begun += chunk.index == 0

    speaking = [engine.speak(TEXT, seed=seed, max_ahead_s=lead_s) for seed in range(streams)]
    takers = [asyncio.create_task(take(stream)) for stream in speaking]
    while begun < streams:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5 + (lead_s or 0.0))  # until chunks have their full length
    before = Reading.take(engine)
    await asyncio.sleep(seconds)
    after = Reading.take(engine)
    for stream in speaking:
        stream.cancel()
    await asyncio.gather(*takers)
    wall, frames = after.wall_s - before.wall_s, after.frames - before.frames
    worker, process = after.worker_s - before.worker_s, after.process_s - before.process_s
    return {
        "frames_a_second": frames / wall,
        "frames_a_chunk": frames / max(1, after.chunks - before.chunks),
        "engine_us_a_frame": worker / frames * 1e6,
        "process_us_a_frame": process / frames * 1e6,
        "engine_cores": worker / wall,
        "engine_cores_in_real_time": worker / frames * streams / FRAME_SECONDS,
        "underruns": sum(stream.facts().underruns for stream in speaking),
    }


async def burst(engine: Engine, texts: int, times: int = 20) -> dict[str, Any]:
    """Milliseconds from the common beginning to first chunks, over all of ``times``."""
    first: list[float] = []

    async def hear(seed: int, began: float) -> None:
        async with engine.speak(TEXT, seed=seed) as stream:
            await anext(stream)
            first.append(time.monotonic() - began)

    for _ in range(times):
        began = time.monotonic()
        await asyncio.gather(*(hear(seed, began) for seed in range(texts)))
        await asyncio.sleep(0.2)
    return {"first_chunk_ms": percentiles_ms(first)}


async def arrivals(engine: Engine, rate: float, seconds: float) -> dict[str, Any]:
    """Measure what listeners hear if ``rate`` of them a second arrive at random moments."""
    listen = listening_to(engine)
    await drive(listen, Traffic("burst", 8), Script(), 1.0)  # the engine learns how long launches take
    case = LoadCase.of(await drive(listen, Traffic("rate", rate), Script(), seconds), None)
    names = ("requests", "first_chunk_ms", "underruns", "worst_gap_ms", "speech_s_per_s", "errors")
    return {name: getattr(case, name) for name in names}


def open_here(registry: BackendRegistry, settings: Settings, checkpoint: Checkpoint) -> Engine:
    """Open the engine of a server in this process, with these backends."""
    return Engine.open(settings, checkpoint=checkpoint, registry=registry)


def serve(settings: Settings, checkpoint: Checkpoint, registry: BackendRegistry) -> None:
    """Serve until the process is interrupted; its log says when it is ready."""
    configure_logging("text")
    logging.getLogger("megatalker").setLevel(logging.INFO)
    with bind(settings.server) as bound, suppress(KeyboardInterrupt):
        TalkServer(LazyEngine(settings, checkpoint, partial(open_here, registry)), settings.server, bound).run()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=whole(), default=500)
    parser.add_argument("--seconds", type=number(), default=5.0)
    parser.add_argument("--pace", action="store_true", help="in real time, with steps as long as a GPU's")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--burst", action="store_true", help="all at one moment, instead of endless streams")
    instead.add_argument("--rate", type=number(), help="with --megakernel: requests a second, for --seconds")
    instead.add_argument("--serve", type=whole(0), metavar="PORT", help="with --megakernel; 0 takes a free one")
    parser.add_argument("--megakernel", action="store_true", help="its host side, on a device in time")
    parser.add_argument("--device-speed", type=number(), default=1.0, help="times that of an H200")
    add_json_option(parser)
    options = parser.parse_args()
    if not options.megakernel and (options.rate, options.serve) != (None, None):
        parser.error("--rate and --serve go with --megakernel")
    if options.megakernel and (options.rate, options.serve) == (None, None) and not options.burst:
        parser.error("--megakernel goes with --burst, --rate or --serve: its streams end after some hundred frames")
    device = TimedDevice(options.device_speed) if options.megakernel else None
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder) / "tiny", TINY))
        many = {"max_streams": options.streams, "max_waiting": options.streams}
        endless = {"max_frames": 2**20, "max_segment_frames": 2**20, "short_speech": "believe"}
        dtype, server = "bfloat16" if device else "auto", {"port": options.serve or 0}
        settings = Settings(dtype=dtype, runaway_guard=True, server=server, **many, **endless)
        registry = BackendRegistry([("stand-ins", StandIns(options.pace, device))])
        in_use = device.in_use() if device else nullcontext()
        if options.serve is not None:
            with in_use:
                serve(settings, checkpoint, registry)
            return
        with in_use, Engine.open(settings, checkpoint=checkpoint, registry=registry) as engine:
            spare_what_is_loaded()
            switch_threads_often()
            lead_s = LEAD_S if options.pace else None
            if options.rate is not None:
                figures = asyncio.run(arrivals(engine, options.rate, options.seconds))
            elif options.burst:
                figures = asyncio.run(burst(engine, options.streams))
            else:
                figures = asyncio.run(listen(engine, options.streams, options.seconds, lead_s))
    hand_out({"streams": options.streams, "paced": options.pace, **figures}, options.json)


if __name__ == "__main__":
    main()

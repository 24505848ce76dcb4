"""Pipecat sessions to measure: a pipeline around the service, clocks at both ends, and a watch on the event loop."""

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode
from pipecat.workers.runner import WorkerRunner

from megatalker import Engine, Settings
from megatalker.plugins.device import dtype_name, resolve_device
from megatalker_pipecat import MegatalkerTTSService

PATIENCE_S = 300.0


class _End(FrameProcessor):
    """Passes everything on; tells a listener about frames of interest on their way down."""

    def __init__(self, listener: Callable[[Frame], None] = lambda _: None) -> None:
        super().__init__(enable_direct_mode=True)
        self._listener = listener

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM:
            self._listener(frame)
        await self.push_frame(frame, direction)


@dataclass
class Session:
    """One pipeline. Times are ``time.perf_counter()`` seconds."""

    service: MegatalkerTTSService
    worker: PipelineWorker
    entrance: FrameProcessor
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    first_audio: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    first_audio_at: float = 0.0
    interrupted_at: float = 0.0
    stale: int = 0
    """Audio frames that came out after an interruption."""
    audio_s: float = 0.0
    _played_until: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Times that a player that began with the first audio had nothing to play, until the end of the answer."""

    @classmethod
    def of(cls, settings: Settings, mode: TextAggregationMode, rate: int) -> "Session":
        """A session on the shared engine for these settings."""
        service = MegatalkerTTSService(
            engine_settings=settings, settings=MegatalkerTTSService.Settings(seed=1), text_aggregation_mode=mode
        )
        entrance, heard = _End(), _End(lambda frame: session.hear(frame))
        params = PipelineParams(audio_out_sample_rate=rate)
        pipeline = Pipeline([entrance, service, heard])
        worker = PipelineWorker(pipeline, params=params, cancel_on_idle_timeout=False, enable_rtvi=False)
        session = cls(service, worker, entrance)
        worker.event_handler("on_pipeline_started")(session.begin)
        return session

    async def begin(self, _worker: PipelineWorker, _frame: Frame) -> None:
        """The pipeline has started."""
        self.ready.set()

    def hear(self, frame: Frame) -> None:
        """A frame came out of the service."""
        if isinstance(frame, TTSAudioRawFrame):
            self.stale += self.interrupted.is_set()
            now = time.perf_counter()
            if not self.first_audio.is_set():
                self.first_audio_at = self._played_until = now
                self.first_audio.set()
            if now > self._played_until:
                self.gaps_s.append(now - self._played_until)
            self._played_until = max(now, self._played_until) + frame.num_frames / frame.sample_rate
            self.audio_s += frame.num_frames / frame.sample_rate
        elif isinstance(frame, InterruptionFrame):
            self.interrupted_at = time.perf_counter()
            self.interrupted.set()
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()

    def listen(self) -> None:
        """Forget what was heard."""
        for event in (self.first_audio, self.stopped, self.interrupted):
            event.clear()
        self.stale, self.audio_s, self.gaps_s = 0, 0.0, []

    async def send(self, frame: Frame) -> None:
        """Straight into the service."""
        await self.entrance.push_frame(frame)

    async def speak(self, text: str) -> float:
        """Say a text that is known at once; returns when its first frame went in."""
        self.listen()
        began = time.perf_counter()
        await self.send(TTSSpeakFrame(text))
        return began

    async def answer(self, text: str, tokens_per_second: float) -> float:
        """Say a text as a language model writes it, word by word; returns when its first word went in."""
        self.listen()
        await self.send(LLMFullResponseStartFrame())
        began = time.perf_counter()
        for number, word in enumerate(text.split(" ")):
            await asyncio.sleep(max(0.0, began + number / tokens_per_second - time.perf_counter()))
            await self.send(LLMTextFrame(word if number == 0 else f" {word}"))
        await self.send(LLMFullResponseEndFrame())
        return began

    async def interrupt(self) -> float:
        """Interrupt; returns the seconds until the frame came out."""
        began = time.perf_counter()
        await self.send(InterruptionFrame())
        await self.interrupted.wait()
        return self.interrupted_at - began


@asynccontextmanager
async def sessions(
    settings: Settings, mode: TextAggregationMode, count: int, rate: int
) -> AsyncIterator[list[Session]]:
    """Running sessions, ready to speak; all are ended afterwards."""
    made = [Session.of(settings, mode, rate) for _ in range(count)]
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(*(session.worker for session in made))
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(session.ready.wait() for session in made))
        yield made
    finally:
        for session in made:
            await session.worker.queue_frame(EndFrame())
        await asyncio.wait_for(running, PATIENCE_S)


class LoopWatch:
    """How late the event loop runs what is due: samples in seconds while the ``async with`` block lasts."""

    EVERY_S = 0.002

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def __aenter__(self) -> "LoopWatch":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + self.EVERY_S
            await asyncio.sleep(self.EVERY_S)
            self.lags.append(time.perf_counter() - due)


@asynccontextmanager
async def busy_loop(work_s: float, rest_s: float) -> AsyncIterator[None]:
    """Something else on the event loop that blocks it for ``work_s`` in every ``work_s + rest_s``."""

    async def toil() -> None:
        while True:
            until = time.perf_counter() + work_s
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(rest_s)

    task = asyncio.create_task(toil())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def environment(engine: Engine) -> dict[str, Any]:
    """What figures depend on."""
    device = resolve_device(engine.settings.device)
    return {
        "checkpoint": engine.settings.checkpoint,
        "backend": engine.backend,
        "codec": engine.codec,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "dtype": dtype_name(engine.dtype),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("megatalker", "pipecat-ai", "torch")},
    }

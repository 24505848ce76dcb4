"""Pipecat sessions to measure: a pipeline around the service, clocks at both ends, and a watch on the event loop."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

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
from megatalker.cli.bench.playback import Playback
from megatalker.cli.bench.report import environment_of_engine
from megatalker_pipecat import MegatalkerTTSService

PATIENCE_S = 300.0


class _End(FrameProcessor):
    """Passes everything on, and tells a listener about frames on their way down."""

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
    """One pipeline. Times are ``time.monotonic()`` seconds."""

    service: MegatalkerTTSService
    worker: PipelineWorker
    entrance: FrameProcessor
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    first_audio: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted_at: float = 0.0
    stale: int = 0
    """Audio frames that came out after an interruption."""
    playback: Playback = field(default_factory=lambda: Playback(time.monotonic()))
    """Playback of this answer by a player that began with the first audio."""

    @classmethod
    def of(cls, settings: Settings, mode: TextAggregationMode, rate: int) -> "Session":
        """Make a session on the shared engine for these settings."""
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
        """Observe that the pipeline has started."""
        self.ready.set()

    def hear(self, frame: Frame) -> None:
        """Observe a frame that came out of the service."""
        if isinstance(frame, TTSAudioRawFrame):
            self.stale += self.interrupted.is_set()
            self.playback.play(frame.num_frames / frame.sample_rate, time.monotonic())
            self.first_audio.set()
        elif isinstance(frame, InterruptionFrame):
            self.interrupted_at = time.monotonic()
            self.interrupted.set()
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()

    def listen(self) -> None:
        """Forget the answer before."""
        for event in (self.first_audio, self.stopped, self.interrupted):
            event.clear()
        self.stale, self.playback = 0, Playback(time.monotonic())

    async def send(self, frame: Frame) -> None:
        """Push a frame straight into the service."""
        await self.entrance.push_frame(frame)

    async def speak(self, text: str) -> None:
        """Say a text that is known at once."""
        self.listen()
        await self.send(TTSSpeakFrame(text))

    async def answer(self, text: str, tokens_per_second: float) -> None:
        """Say a text as a language model writes it, word by word."""
        self.listen()
        await self.send(LLMFullResponseStartFrame())
        began = self.playback.requested_at = time.monotonic()
        for number, word in enumerate(text.split(" ")):
            await asyncio.sleep(max(0.0, began + number / tokens_per_second - time.monotonic()))
            await self.send(LLMTextFrame(word if number == 0 else f" {word}"))
        await self.send(LLMFullResponseEndFrame())

    async def interrupt(self) -> float:
        """Interrupt, and return the seconds until the frame came out."""
        began = time.monotonic()
        await self.send(InterruptionFrame())
        await self.interrupted.wait()
        return self.interrupted_at - began


@asynccontextmanager
async def sessions(
    settings: Settings, mode: TextAggregationMode, count: int, rate: int
) -> AsyncIterator[list[Session]]:
    """Start sessions that are ready to speak; all are ended afterwards."""
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
    """Samples of the delay with which the event loop runs what is due, in seconds, within an ``async with`` block."""

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
            due = time.monotonic() + self.EVERY_S
            await asyncio.sleep(self.EVERY_S)
            self.lags.append(time.monotonic() - due)


@asynccontextmanager
async def busy_loop(work_s: float, rest_s: float) -> AsyncIterator[None]:
    """Block the event loop for ``work_s`` in every ``work_s + rest_s``."""

    async def toil() -> None:
        while True:
            until = time.monotonic() + work_s
            while time.monotonic() < until:
                pass
            await asyncio.sleep(rest_s)

    task = asyncio.create_task(toil())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def environment(engine: Engine) -> dict[str, str]:
    """Return the environment that the figures of a session depend on."""
    load, pipecat = f"{os.getloadavg()[0]:.2f}", version("pipecat-ai")
    return environment_of_engine(engine) | {"pipecat-ai": pipecat, "load_average": load}

"""Pipecat's service as a face of the fuzz: one pipeline, in which one turn is spoken after another."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from pipecat.frames.frames import (
    AggregatedTextFrame,
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode
from pipecat.workers.runner import WorkerRunner

from megatalker import SAMPLE_RATE, Engine
from megatalker_benchmarks.fuzz_faces import PATIENCE_S, FaceSpeech, SpeakText
from megatalker_pipecat import MegatalkerTTSService


class _Collector(FrameProcessor):
    """Stands before and after the service, keeps the frames of a turn, and passes everything on."""

    def __init__(self, frames: list[Frame], turn_over: asyncio.Event) -> None:
        super().__init__()
        self._frames, self._turn_over = frames, turn_over

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self._frames.append(frame)
        if isinstance(frame, LLMFullResponseEndFrame):
            self._turn_over.set()
        await self.push_frame(frame, direction)


class _Conversation:
    """A pipeline, and the turns that are spoken in it."""

    def __init__(self, engine: Engine, mode: TextAggregationMode) -> None:
        self._frames: list[Frame] = []
        self._turn_over, self._started = asyncio.Event(), asyncio.Event()
        self._sentences = mode is TextAggregationMode.SENTENCE
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        self._entrance = _Collector([], asyncio.Event())
        pipeline = Pipeline([self._entrance, service, _Collector(self._frames, self._turn_over)])
        params = PipelineParams(audio_out_sample_rate=SAMPLE_RATE)
        self._worker = PipelineWorker(pipeline, params=params, cancel_on_idle_timeout=False, enable_rtvi=False)
        self._worker.event_handler("on_pipeline_started")(self._begin)
        service.event_handler("on_error")(self._keep_error)
        self._running: asyncio.Task[None] | None = None

    async def _begin(self, _worker: PipelineWorker, _frame: Frame) -> None:
        self._started.set()

    async def _keep_error(self, _service: FrameProcessor, error: ErrorFrame) -> None:
        self._frames.append(error)

    async def start(self) -> None:
        """Run the pipeline until :meth:`stop`."""
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self._worker)
        self._running = asyncio.create_task(runner.run())
        await asyncio.wait_for(self._started.wait(), PATIENCE_S)

    async def stop(self) -> None:
        """End the pipeline."""
        await self._worker.cancel()
        assert self._running is not None
        await self._running

    async def speak(self, text: str, pieces: Sequence[str] | None) -> FaceSpeech:
        """Speak one turn; return what left the service for it."""
        self._frames.clear()
        self._turn_over.clear()
        answer = map(LLMTextFrame, [text] if pieces is None else pieces)
        for frame in (LLMFullResponseStartFrame(), *answer, LLMFullResponseEndFrame()):
            await self._entrance.push_frame(frame)
        await asyncio.wait_for(self._turn_over.wait(), PATIENCE_S)
        errors = [frame.error for frame in self._frames if isinstance(frame, ErrorFrame)]
        if errors:
            raise RuntimeError("; ".join(errors))
        samples = sum(frame.num_frames for frame in self._frames if isinstance(frame, TTSAudioRawFrame))
        words = [frame.text for frame in self._frames if isinstance(frame, TTSTextFrame)]
        return FaceSpeech(samples, words=words, texts=self._given() if self._sentences else None)

    def _given(self) -> list[str]:
        announced = (frame for frame in self._frames if isinstance(frame, AggregatedTextFrame))
        return [frame.text for frame in announced if not isinstance(frame, TTSTextFrame)]


@contextmanager
def _conversation(engine: Engine, mode: TextAggregationMode) -> Iterator[SpeakText]:
    with asyncio.Runner() as runner:
        conversation = _Conversation(engine, mode)
        runner.run(conversation.start())
        try:
            yield lambda text, pieces: runner.run(conversation.speak(text, pieces))
        finally:
            runner.run(conversation.stop())


def sentence(engine: Engine) -> AbstractContextManager[SpeakText]:
    """``SENTENCE`` mode: a whole text is one piece of the answer."""
    return _conversation(engine, TextAggregationMode.SENTENCE)


def token(engine: Engine) -> AbstractContextManager[SpeakText]:
    """``TOKEN`` mode: a whole text is one piece of the answer."""
    return _conversation(engine, TextAggregationMode.TOKEN)

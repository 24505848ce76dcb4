"""Spans of the service."""

import asyncio
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipecat.frames.frames import EndFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.services.tts_service import TextAggregationMode
from pipecat.workers.runner import WorkerRunner

from megatalker import Checkpoint, SamplingParams
from megatalker_pipecat import MegatalkerTTSService
from pipecat_stage import HANG_S, turn
from session_stage import engine_on, fakes


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_a_turn_is_a_span(
    tiny_custom_voice: Checkpoint, exporter: InMemorySpanExporter, mode: TextAggregationMode
) -> None:
    exporter.clear()
    with engine_on(fakes(on_decode=lambda call: time.sleep(0.005)), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(
            engine=engine,
            text_aggregation_mode=mode,
            settings=MegatalkerTTSService.Settings(voice="ryan", sampling=SamplingParams(), seed=4),
        )
        worker = PipelineWorker(
            Pipeline([service]),
            params=PipelineParams(enable_metrics=True),
            enable_tracing=True,
            enable_turn_tracking=True,
            cancel_on_idle_timeout=False,
        )
        await worker.queue_frames([*turn("Good morning. ", "How are you?"), EndFrame()])
        runner = WorkerRunner()
        await runner.add_workers(worker)
        await asyncio.wait_for(runner.run(), HANG_S)
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "tts"]
    assert span.attributes is not None
    assert span.attributes["gen_ai.request.model"] == "demo"
    assert span.attributes["voice_id"] == "ryan"
    assert span.attributes["metrics.character_count"] == len("Good morning.How are you?") + (mode == "token")
    assert span.attributes["metrics.ttfb"] > 0

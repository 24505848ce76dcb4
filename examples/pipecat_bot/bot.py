"""A voice agent that speaks with Qwen3-TTS, made in this process by megatalker.

Speech to text and the language model come from OpenAI or from anything with its API (OPENAI_API_KEY, OPENAI_BASE_URL).
MEGATALKER_* variables or a megatalker.toml choose checkpoint and backend.

    python bot.py -t webrtc      # then open http://localhost:7860
"""

import os

from dotenv import load_dotenv
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.transcriptions.language import Language
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner

from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.page import Page

load_dotenv(override=True)

page = Page()  # its engine is loaded once, before the first call: every session shares it

transport_params = {
    "webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True),
}


async def run_bot(transport: BaseTransport, runner_args: RunnerArguments) -> None:
    """One conversation."""
    logger.info("Starting bot")

    api_key, base_url = os.getenv("OPENAI_API_KEY", "none"), os.getenv("OPENAI_BASE_URL")
    stt = OpenAISTTService(api_key=api_key, base_url=base_url)
    llm = OpenAILLMService(
        api_key=api_key,
        base_url=base_url,
        settings=OpenAILLMService.Settings(
            system_instruction="You are a helpful assistant in a voice call. Answer in one or two plain sentences.",
        ),
    )
    tts = MegatalkerTTSService(settings=MegatalkerTTSService.Settings(language=Language.EN))

    context = LLMContext()
    user_aggregator, assistant_aggregator = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    pipeline = Pipeline(
        [
            transport.input(),
            stt,
            user_aggregator,
            llm,
            tts,
            transport.output(),
            assistant_aggregator,
        ]
    )
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        idle_timeout_secs=runner_args.pipeline_idle_timeout_secs,
    )
    await page.attend(worker, tts, runner_args.body)

    @transport.event_handler("on_client_connected")
    async def on_client_connected(_transport: BaseTransport, _client: object) -> None:
        logger.info("Client connected")
        context.add_message({"role": "user", "content": "Please introduce yourself."})
        await worker.queue_frames([LLMRunFrame()])

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(_transport: BaseTransport, _client: object) -> None:
        logger.info("Client disconnected")
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


async def bot(runner_args: RunnerArguments) -> None:
    """Run one conversation; the runner calls this for each client."""
    await run_bot(await create_transport(runner_args, transport_params), runner_args)


if __name__ == "__main__":
    from pipecat.runner.run import app, main

    with page.serve(app):
        main()

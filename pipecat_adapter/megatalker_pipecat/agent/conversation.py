"""One conversation: the pipeline between a transport's ends, with its memory of what was said."""

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker, ProcessorUnusablePolicy
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.workers.runner import WorkerRunner

from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.services import answering, hearing


class Conversation:
    """Speech to text, turn detection, language model, speech, and the context they share.

    Barge-in is Pipecat's: the moment the user speaks, the speech being made is cancelled, and the context keeps the
    words that were heard.
    """

    def __init__(
        self,
        plan: Plan,
        source: FrameProcessor | None,
        sink: FrameProcessor,
        *,
        idle_timeout_s: float | None = None,
    ) -> None:
        """Build the pipeline from ``source`` (a transport's input; ``None``: text comes by :attr:`worker`) to ``sink``.

        Args:
            plan: what it is made of.
            source: where speech and messages arrive.
            sink: where speech leaves.
            idle_timeout_s: the conversation ends when nobody says anything for so long; ``None``: never.
        """
        self._plan = plan
        self.context = LLMContext()
        listening = hearing(plan)
        vad = None if listening is None else SileroVADAnalyzer()
        self.user, self.assistant = LLMContextAggregatorPair(
            self.context, user_params=LLMUserAggregatorParams(vad_analyzer=vad)
        )
        speech = MegatalkerTTSService(engine_settings=plan.engine)
        stages = [source, listening, self.user, answering(plan), speech, sink, self.assistant]
        self.worker = PipelineWorker(
            Pipeline([stage for stage in stages if stage is not None]),
            params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
            idle_timeout_secs=idle_timeout_s,
            processor_unusable_policy=ProcessorUnusablePolicy.END,
        )

    async def greet(self) -> None:
        """Say the greeting, if there is one."""
        if self._plan.agent.greeting:
            await self.worker.queue_frame(TTSSpeakFrame(self._plan.agent.greeting))

    async def run(self, *, handle_sigint: bool) -> None:
        """Run until it is over."""
        runner = WorkerRunner(handle_sigint=handle_sigint)
        await runner.add_workers(self.worker)
        await runner.run()

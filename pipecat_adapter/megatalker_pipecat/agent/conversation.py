"""One conversation: the pipeline between a transport's ends, with its memory of what was said."""

from typing import Any

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker, ProcessorUnusablePolicy
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.workers.runner import WorkerRunner

from megatalker_pipecat import MegatalkerTTSService, TurnLatencyObserver
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.services import answering, hearing
from megatalker_pipecat.agent.turn_log import TurnLog
from megatalker_pipecat.latency import Turn


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
        turns: TurnLog,
        *,
        behind_hearing: FrameProcessor | None = None,
        behind_all: FrameProcessor | None = None,
        rate: int | None = None,
        idle_timeout_s: float | None = None,
    ) -> None:
        """Build the pipeline from ``source`` (a transport's input; ``None``: text comes by :attr:`worker`) to ``sink``.

        Args:
            plan: what it is made of.
            source: where speech and messages arrive.
            sink: where speech leaves.
            turns: takes the times of each turn. Clients are told them in a server message of type ``turn``.
            behind_hearing: stands between speech to text and turn detection.
            behind_all: stands behind the memory of what was said.
            rate: samples a second of the line, both ways; ``None``: Pipecat's defaults.
            idle_timeout_s: the conversation ends when nobody says anything for this long; ``None``: never.
        """
        self._plan = plan
        self.context = LLMContext()
        listening = hearing(plan)
        vad = None if listening is None else SileroVADAnalyzer()
        self.user, self.assistant = LLMContextAggregatorPair(
            self.context, user_params=LLMUserAggregatorParams(vad_analyzer=vad)
        )
        rates: dict[str, Any] = {}
        if rate is not None:
            rates = {"audio_in_sample_rate": rate, "audio_out_sample_rate": rate}
        self.speech = MegatalkerTTSService(engine_settings=plan.engine)
        latency = TurnLatencyObserver()
        latency.add_event_handler("on_turn", self._note_turn)
        self._turns, self._number = turns, turns.next_conversation()
        self.model = answering(plan)
        """The language model, or what stands in its place."""
        hearing_stages = [source, listening, behind_hearing, self.user]
        stages = [*hearing_stages, self.model, self.speech, sink, self.assistant, behind_all]
        self.worker = PipelineWorker(
            Pipeline([stage for stage in stages if stage is not None]),
            params=PipelineParams(enable_metrics=True, enable_usage_metrics=True, **rates),
            idle_timeout_secs=idle_timeout_s,
            processor_unusable_policy=ProcessorUnusablePolicy.END,
            observers=[latency],
        )

    async def greet(self) -> None:
        """Say the greeting, if there is one."""
        if self._plan.agent.greeting:
            await self.worker.queue_frame(TTSSpeakFrame(self._plan.agent.greeting))

    async def _note_turn(self, _observer: object, turn: Turn) -> None:
        self._turns.note(self._number, turn)
        await self.worker.rtvi.send_server_message({"type": "turn", **turn.as_json()})

    async def run(self, *, handle_sigint: bool) -> None:
        """Run until it is over."""
        runner = WorkerRunner(handle_sigint=handle_sigint)
        await runner.add_workers(self.worker)
        await runner.run()

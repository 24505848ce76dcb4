"""A whole conversation with the agent, offline: how long each answer takes, and where the time goes.

megatalker bench conversation --backend compiled --checkpoint demo --json benchmarks/results/cpu/conversation.json

The user is a voice of vowels, spoken at its own pace. Speech to text and the language model are a mock server on the
loopback interface. Voice activity detection, turn detection, sentence splitting, speech and playback are the agent's
own. Every second answer is interrupted by the next question.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from pipecat.frames.frames import EndFrame, InputAudioRawFrame, StartFrame
from pipecat.processors.aggregators.llm_response_universal import AssistantTurnStoppedMessage
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_transport import TransportParams

from megatalker import Engine, Settings
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_benchmarks.pipecat_rig import PATIENCE_S, environment
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_benchmarks.vowels import RATE, utterance
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.plan import Endpoint, Plan
from megatalker_pipecat.agent.settings import AgentSettings
from megatalker_pipecat.agent.turn_log import TurnLog, summary
from megatalker_pipecat.agent.wav_output import WavOutput
from megatalker_pipecat.latency import Turn

PITCH, QUESTION = 110.0, "aeiaeiaei"
ASKED = "Tell me about the sea."
ANSWER = "The sea is wide and deep. It covers most of the earth, and holds nearly all of its water."
INTERRUPTED_AFTER_S = 1.5
REST_S = 0.8
PIECE_S = 0.02


class Microphone(BaseInputTransport):
    """A microphone in a silent room, at the pace of a sound device."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_in_enabled=True, audio_in_sample_rate=RATE))
        self._coming = b""
        self._recording: asyncio.Task[None] | None = None

    def say(self, samples: np.ndarray) -> None:
        """Say samples from now on: int16 at ``RATE``."""
        self._coming = samples.astype("<i2").tobytes()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._recording = self.create_task(self._record(), "recording")

    async def cleanup(self) -> None:
        if self._recording is not None:
            await self.cancel_task(self._recording)
        await super().cleanup()

    async def _record(self) -> None:
        size, due = 2 * round(PIECE_S * RATE), time.monotonic()
        while True:
            piece, self._coming = self._coming[:size], self._coming[size:]
            await self.push_audio_frame(InputAudioRawFrame(piece.ljust(size, b"\0"), RATE, 1))
            due += PIECE_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class _Turns(TurnLog):
    """A log that keeps the turns, and tells when one has had its first sound."""

    def __init__(self) -> None:
        super().__init__(None)
        self.all: list[Turn] = []
        self.sounds = asyncio.Event()

    def note(self, conversation: int, turn: Turn) -> None:
        super().note(conversation, turn)
        self.all.append(turn)
        self.sounds.set()


async def converse(engine: Settings, rounds: int, thought_s: float, recording: Path) -> list[Turn]:
    """Ask ``rounds`` questions; the agent's part of the conversation goes into the WAV file ``recording``."""
    with MockOpenAI({PITCH: ASKED}, {ASKED: ANSWER}, thought_s) as mock:
        ears, mind = (Endpoint("openai", "none", name, mock.url) for name in ("ears", "mind"))
        microphone, turns, said = Microphone(), _Turns(), asyncio.Event()
        plan = Plan(engine, AgentSettings(), ears, mind)
        conversation = Conversation(plan, microphone, WavOutput(recording), turns)

        async def note_end(_aggregator: object, _message: AssistantTurnStoppedMessage) -> None:
            said.set()

        conversation.assistant.add_event_handler("on_assistant_turn_stopped", note_end)
        running = asyncio.create_task(conversation.run(handle_sigint=False))
        question = utterance(QUESTION, PITCH)
        for number in range(rounds):
            await asyncio.sleep(INTERRUPTED_AFTER_S if number % 2 else REST_S)
            turns.sounds.clear()
            said.clear()
            microphone.say(question)
            async with asyncio.timeout(PATIENCE_S):
                await turns.sounds.wait()
                if number % 2:
                    await said.wait()
        await conversation.worker.queue_frame(EndFrame())
        await running
    return turns.all


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Hold the conversation on an engine that is loaded and warm."""
    asked = {name: getattr(options, name) for name in ("checkpoint", "backend", "device") if getattr(options, name)}
    settings = Settings.read(**asked, fallbacks=())
    async with await MegatalkerTTSService.preload(settings) as lease:
        engine = lease.engine
        assert isinstance(engine, Engine), "a preloaded engine is one of this process"
        await asyncio.to_thread(engine.speak(ANSWER).read_all)  # what no warm-up reaches
        with tempfile.TemporaryDirectory() as folder:
            recording = options.wav or Path(folder) / "answers.wav"
            turns = await converse(settings, options.rounds, options.thought, recording)
        return {
            "environment": environment(engine),
            "language_model_s": options.thought,
            "summary": summary(turns),
            "turns": [turn.as_json() for turn in turns],
        }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="talker backend; by default the best available")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default CUDA where there is one")
    parser.add_argument("--rounds", type=whole(), default=12, help="questions")
    parser.add_argument(
        "--thought", type=number(zero=True), default=0.0, help="seconds that the mock language model thinks"
    )
    parser.add_argument("--wav", type=Path, help="keep the agent's part of the conversation")
    add_json_option(parser)
    options = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="INFO" if sys.stderr.isatty() else "WARNING")
    hand_out(asyncio.run(measure(options)), options.json)


if __name__ == "__main__":
    main()

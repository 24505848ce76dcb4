"""Stages of the pipeline that a Realtime session looks through: what is heard, and what is said."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    FunctionCallsStartedFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMAssistantPushAggregationFrame,
    LLMContextUserTurnFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    OutputAudioRawFrame,
    StartFrame,
    TranscriptionFrame,
    TTSStartedFrame,
    TTSTextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker_pipecat.agent.realtime.incoming import RATE

PIECE_S = 0.04
AHEAD_S = 0.4
"""Audio is sent this long before it should be heard: the client has it in hand when the network hesitates."""
TRANSCRIPT_S = 10.0
"""Seconds that speech to text may take for a message."""


class CommittedSpeech(FrameProcessor):
    """Stands behind speech to text, and keeps messages that a client commits from the turn detection behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        """Frames may be pushed."""
        self._expecting = False
        self._texts: list[str] = []
        self._finished = asyncio.Event()

    async def transcribe(self, audio: bytes, worker: PipelineWorker) -> str:
        """Return what is said in 16-bit samples at 16 kHz; "" when speech to text has nothing to say for long."""
        self._expecting, self._texts = True, []
        self._finished.clear()
        try:
            await worker.queue_frame(VADUserStartedSpeakingFrame())
            size = 2 * round(PIECE_S * RATE)
            for at in range(0, len(audio), size):
                await worker.queue_frame(InputAudioRawFrame(audio[at : at + size], RATE, 1))
            await worker.queue_frame(VADUserStoppedSpeakingFrame())
            try:
                async with asyncio.timeout(TRANSCRIPT_S):
                    await self._finished.wait()
            except TimeoutError:
                pass  # some services say nothing where they hear nothing
            return " ".join(self._texts)
        finally:
            self._expecting = False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not self._expecting or direction is not FrameDirection.DOWNSTREAM or not isinstance(frame, _HEARD):
            await self.push_frame(frame, direction)
            if isinstance(frame, StartFrame):
                self.started.set()
        elif isinstance(frame, TranscriptionFrame):
            self._texts.append(frame.text)
            if frame.finalized:
                self._finished.set()


_HEARD = (
    InputAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
)


class AnswerListener(Protocol):
    """Is told what leaves the pipeline, in order."""

    async def user_begins(self) -> None:
        """Somebody began to speak."""

    async def user_ends(self) -> None:
        """Somebody has finished."""

    async def user_said(self, text: str) -> None:
        """The conversation has this of the user now."""

    async def answer_begins(self) -> None:
        """The model answers, or something else is about to be said."""

    async def audio(self, samples: bytes) -> None:
        """Audio of the answer: 16-bit, mono, 24 kHz."""

    async def word(self, text: str, *, joined: bool) -> None:
        """A word begins to be heard; ``joined``: without a space before it."""

    async def functions_called(self, calls: Sequence[FunctionCallFromLLM]) -> None:
        """The answer calls these functions."""

    async def answer_ends(self) -> None:
        """All of the answer was said."""

    async def interrupted(self) -> None:
        """The answer that was being said is cancelled."""

    async def answer_kept(self) -> None:
        """The conversation has what was said of the answer now."""


class AnswerOutput(BaseOutputTransport):
    """The pipeline's output: plays nothing, but at the pace of a loudspeaker, and tells what goes through."""

    def __init__(self, listener: AnswerListener) -> None:
        super().__init__(
            TransportParams(audio_out_enabled=True, audio_out_sample_rate=SAMPLE_RATE, audio_out_end_silence_secs=0)
        )
        self._listener = listener
        self._played_until = 0.0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await self._listener.audio(frame.audio)
        now = time.monotonic()
        self._played_until = max(self._played_until, now) + len(frame.audio) / (2 * frame.sample_rate)
        await asyncio.sleep(max(0.0, self._played_until - now - AHEAD_S))
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            self._played_until = 0.0
            await self._listener.interrupted()

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Push a frame, which was held back until the audio before it was played."""
        if direction is FrameDirection.DOWNSTREAM:
            await self._tell(frame)
        await super().push_frame(frame, direction)

    async def _tell(self, frame: Frame) -> None:
        match frame:
            case UserStartedSpeakingFrame():
                await self._listener.user_begins()
            case UserStoppedSpeakingFrame():
                await self._listener.user_ends()
            case LLMContextUserTurnFrame():
                await self._listener.user_said(frame.text)
            case LLMFullResponseStartFrame() | TTSStartedFrame():
                await self._listener.answer_begins()
            case TTSTextFrame():
                await self._listener.word(frame.text, joined=frame.includes_inter_frame_spaces)
            case FunctionCallsStartedFrame():
                await self._listener.functions_called(frame.function_calls)
            case LLMFullResponseEndFrame() | LLMAssistantPushAggregationFrame():
                await self._listener.answer_ends()


class KeptAnswers(FrameProcessor):
    """Stands behind everything: tells when the conversation has kept what was said."""

    def __init__(self, listener: AnswerListener) -> None:
        super().__init__()
        self._listener = listener

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseEndFrame | LLMAssistantPushAggregationFrame | InterruptionFrame):
            await self._listener.answer_kept()
        await self.push_frame(frame, direction)

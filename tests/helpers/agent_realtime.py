"""A Realtime client of the agent, whose speech to text and language model are stand-ins."""

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from agent_desk import AgentDesk, open_for_calls
from megatalker import Checkpoint
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_benchmarks.vowels import RATE, utterance
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent import services
from pipecat_stage import closing
from realtime_client import RealtimeClient, talking
from session_stage import fakes, pool_of

LOW, HIGH = 110.0, 190.0
ASKED, STOPPED, GREETING = "Tell me about the sea.", "Wait, stop.", "Hello."
STORY = "The sea is wide and deep. It covers most of the earth. Many animals live in it. Sailors crossed it long ago."
ANSWERS = {ASKED: STORY, STOPPED: "All right.", GREETING: "Good morning to you."}
FRAMES = 12
SILENCE = bytes(48_000)


def use_stand_ins(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have agents of this process speak on fakes, and close the connections of their services."""
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(fakes(FRAMES), checkpoint))
    for name in ("OpenAILLMService", "OpenAISTTService"):
        monkeypatch.setattr(services, name, closing(getattr(services, name)))


@asynccontextmanager
async def agent(
    answers: Mapping[str, str] = ANSWERS, calls: Mapping[str, Mapping[str, str]] | None = None, **options: Any
) -> AsyncIterator[tuple[RealtimeClient, MockOpenAI, AgentDesk]]:
    with MockOpenAI({LOW: ASKED, HIGH: STOPPED}, answers, calls=calls) as mock:
        desk = AgentDesk(mock.url, **options)
        async with open_for_calls(desk) as address, talking(f"http://{address}") as voice:
            yield voice, mock, desk


def speech(pitch: float = LOW, rate: int = 24_000, vowels: str = "aeiaeiaei") -> np.ndarray:
    """Return ``[samples]`` int16 of an utterance."""
    samples = utterance(vowels, pitch)
    times = np.arange(0, len(samples) * rate // RATE) * RATE / rate
    return np.interp(times, np.arange(len(samples)), samples).astype("<i2")


async def say(voice: RealtimeClient, data: bytes, part: int = 9600) -> None:
    for at in range(0, len(data), part):
        await voice.send("input_audio_buffer.append", audio=base64.b64encode(data[at : at + part]).decode())


async def push_to_talk(voice: RealtimeClient, **audio_input: Any) -> Any:
    return await voice.update(audio={"input": {"turn_detection": None, **audio_input}})

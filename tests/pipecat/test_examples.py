"""The adapter's README and the example bot work as they stand there."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pipecat.frames.frames import Frame, TTSAudioRawFrame, TTSStoppedFrame, TTSTextFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.runner.types import RunnerArguments
from pipecat.services.openai.llm import OpenAILLMService

from megatalker import Checkpoint
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_pipecat import MegatalkerTTSService
from pipecat_stage import HANG_S, Entrance, closing
from session_stage import FRAMES, fakes, pool_of
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "pipecat_adapter" / "README.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.split("\n")[0])
def test_python_snippet(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", snippet],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr


def test_the_first_snippet_makes_a_pipeline() -> None:
    space: dict[str, Any] = {}
    exec(SNIPPETS[0], space)
    pipeline = space["make_pipeline"](*(FrameProcessor() for _ in range(3)))
    assert any(isinstance(processor, MegatalkerTTSService) for processor in pipeline.processors)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_bot", ROOT / "examples" / "pipecat_bot" / "bot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Line:
    """A transport whose other end only listens."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.heard: list[Frame] = []

    def input(self) -> FrameProcessor:
        return Entrance()

    def output(self) -> FrameProcessor:
        return _Ear(self)

    def event_handler(self, name: str) -> Any:
        return lambda handler: self.handlers.setdefault(name, handler)

    async def happens(self, name: str) -> None:
        await self.handlers[name](self, None)


class _Ear(FrameProcessor):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self._line.heard.append(frame)
        await self.push_frame(frame, direction)


@pytest.mark.asyncio
async def test_the_example_bot_introduces_itself(
    example: ModuleType, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(fakes(), tiny_custom_voice))
    monkeypatch.setattr(example, "OpenAILLMService", closing(OpenAILLMService))
    line = Line()
    with MockOpenAI({}, {"Please introduce yourself.": "I am a bot."}) as mock:
        monkeypatch.setenv("OPENAI_BASE_URL", mock.url)
        talk = asyncio.create_task(example.run_bot(line, RunnerArguments()))
        async with asyncio.timeout(HANG_S):
            while "on_client_connected" not in line.handlers:
                await asyncio.sleep(0.01)
            await line.happens("on_client_connected")
            while not any(isinstance(frame, TTSStoppedFrame) for frame in line.heard):
                await asyncio.sleep(0.01)
            await line.happens("on_client_disconnected")
            await talk
    assert [frame.text for frame in line.heard if isinstance(frame, TTSTextFrame)] == ["I", "am", "a", "bot."]
    audio = [frame for frame in line.heard if isinstance(frame, TTSAudioRawFrame)]
    assert sum(frame.num_frames for frame in audio) == FRAMES * 1920

"""The example bot works as it stands there; the package says what is missing where its extra is not installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from livekit.agents import Agent, AgentSession

from livekit_stage import Loudspeaker, SilentMicrophone, tts_class, until
from megatalker import Checkpoint
from megatalker_benchmarks.mock_openai import MockOpenAI
from session_stage import FRAMES, fakes

BOT = Path(__file__).parents[2] / "examples" / "livekit_bot" / "bot.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_livekit_bot", BOT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_example_bot_answers(
    example: ModuleType, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loudspeaker = Loudspeaker()
    sessions: list[AgentSession] = []

    class Offline(AgentSession):
        async def start(self, agent: Agent, *, room: object, **_: Any) -> None:  # type: ignore[override]
            sessions.append(self)
            self.input.audio, self.output.audio = SilentMicrophone(), loudspeaker
            await super().start(agent, record=False)

    monkeypatch.setattr(example, "TTS", tts_class(fakes(), tiny_custom_voice))
    monkeypatch.setattr(example, "AgentSession", Offline)
    job = SimpleNamespace(proc=SimpleNamespace(userdata={}), room=object())
    with MockOpenAI({}, {"Who are you?": "I am a bot."}) as mock:
        monkeypatch.setenv("OPENAI_BASE_URL", mock.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        example.server.setup_fnc(job.proc)
        await example.talk(job)
        (session,) = sessions
        await session.generate_reply(user_input="Who are you?")
        await until(lambda: loudspeaker.played == 2)
        said = [item.text_content for item in session.history.messages() if item.role == "assistant"]
        assert said == ["Hello, how can I help?", "I am a bot."]
        await session.aclose()
        await session.llm.aclose()  # as the end of a process would
    await job.proc.userdata["tts"].aclose()
    assert min(map(len, loudspeaker.segments)) >= FRAMES * 1920 * 2


def test_importing_the_plugin_without_its_extra() -> None:
    program = "import sys; sys.modules['livekit.agents'] = None; import megatalker_livekit"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: cannot import megatalker_livekit: livekit.agents is missing; pip install 'megatalker[livekit]'"
    )

"""Typed text into the real agent, speech out of it, over every transport that needs no device."""

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agent_process import QUICK, Agent, agent_at_work
from rtvi_clients import AgentOutput, say_over_webrtc, say_over_websocket, webrtc_call

pytestmark = pytest.mark.slow

WORDS = "Good morning to all of you."
SOON_S = 20


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_at_work(folder, "--text", environ=QUICK) as agent:
        yield agent.address


@pytest.mark.parametrize("say", [say_over_webrtc, say_over_websocket])
def test_typed_words_are_heard(address: str, say: object) -> None:
    assert callable(say)
    heard: AgentOutput = asyncio.run(say(address, WORDS))

    assert heard.texts("user-input") == [WORDS]
    assert heard.spoken() == [WORDS]
    assert heard.audible_s > 0.05  # the demo checkpoint ends when it likes
    assert not [message for message in heard.messages if message["type"] == "error"]
    (turn,) = [message["data"] for message in heard.messages if message["type"] == "server-message"]
    assert (turn["type"], turn["begun_by"], turn["outcome"]) == ("turn", "text", "answered")
    assert sum(turn["stages_ms"].values()) == pytest.approx(turn["total_ms"], abs=1)


def test_an_agent_that_is_told_to_stop_lets_its_clients_go(tmp_path: Path) -> None:
    async def call_and_stop(agent: Agent) -> None:
        async with webrtc_call(agent.address) as call:
            agent.process.terminate()
            await asyncio.wait_for(call.left.wait(), SOON_S)
            await asyncio.to_thread(agent.process.wait, SOON_S)

    (tmp_path / "megatalker.toml").write_text('backend = "reference"\n')
    with agent_at_work(tmp_path, "--text", environ={}) as agent:
        about = json.loads(_get(f"http://{agent.address}/agent"))
        assert about["backend"] == "reference", "the environment says nothing, so the file decides"
        asyncio.run(call_and_stop(agent))


def test_the_page_is_whole_and_needs_no_other_server(address: str) -> None:
    page = _get(f"http://{address}/")  # redirects to the client
    wanted = _Resources()
    wanted.feed(page)
    modules = {name: _get(f"http://{address}/client/{name}") for name in wanted.names if not name.startswith("data:")}
    imported = {name for text in modules.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    modules |= {name: _get(f"http://{address}/client/{name}") for name in imported}

    assert set(modules) == {"style.css", "page.js", "connection.js", "pickers.js", "transcript.js", "welcome.js"}
    assert "default-src 'self'" in page
    for text in (page, *modules.values()):
        assert not re.findall(r"""["'(]\s*(?:https?:|wss?:)?//[^"')]*""", text)


def test_the_page_is_told_who_speaks(address: str) -> None:
    about = json.loads(_get(f"http://{address}/agent"))
    assert about == {
        "ready": True,
        "listens": False,
        "answers": False,
        "checkpoint": "demo",
        "backend": "compiled",
        "backends": {"compiled": "compiled"},
        "offered": {
            "voice": ["mina", "otto", "robin"],
            "language": ["auto", "english"],
            "backend": ["compiled"],
        },
        "chosen": {"voice": "robin", "language": "auto", "backend": "compiled"},
    }


class _Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names += [value for name, value in attrs if name in ("src", "href") and value]


def _get(url: str) -> str:
    with urllib.request.urlopen(url) as reply:
        return str(reply.read().decode())

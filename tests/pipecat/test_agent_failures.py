"""Messages to the agent's clients when an engine fails, or speech moves to another backend."""

import asyncio
from dataclasses import replace

import pytest

from agent_desk import AgentDesk, open_for_calls
from fake_backend import Fakes
from megatalker import Checkpoint
from megatalker_pipecat import MegatalkerTTSService
from rtvi_clients import AgentOutput, say_over_websocket
from session_stage import fakes, pool_of
from waiting import HANG_S

pytestmark = pytest.mark.asyncio

WORDS = "Good morning to you."


def on_fire(call: int) -> None:
    if call >= 5:
        raise RuntimeError("the device is on fire")


async def talked(plug_in: Fakes, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> AgentOutput:
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(plug_in, checkpoint))
    desk = AgentDesk(None)
    async with open_for_calls(desk) as address:
        heard = await say_over_websocket(address, WORDS)
    await asyncio.wait_for(desk.over.wait(), HANG_S)
    return heard


def of(heard: AgentOutput, kind: str) -> list[dict[str, object]]:
    return [message["data"] for message in heard.messages if message["type"] == kind]


async def test_an_engine_that_dies(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = await talked(fakes(on_decode=on_fire), tiny_custom_voice, monkeypatch)
    (error,) = of(heard, "error")
    assert str(error["error"]).startswith("cannot speak: ")
    assert "the device is on fire" in str(error["error"])
    assert "open a new engine" in str(error["error"])
    assert heard.spoken() == [], "the sentence was not finished"


async def test_the_new_backend_is_named(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in = fakes(on_decode=on_fire)
    plug_in.talkers["spare"] = replace(plug_in.talkers["fake"], on_decode=lambda call: None)
    heard = await talked(plug_in, tiny_custom_voice, monkeypatch)
    assert heard.spoken() == [WORDS]
    told = [data for data in of(heard, "server-message") if data["type"] == "backend"]
    assert told == [{"type": "backend", "kind": "talker", "backend": "spare"}]

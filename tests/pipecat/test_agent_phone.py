"""Telephone calls to the agent, in each provider's own words; one whole conversation with barge-in."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pipecat.runner import run
from pipecat.runner.types import WebSocketRunnerArguments
from pipecat.transports.websocket.fastapi import FastAPIWebsocketTransport

from agent_desk import AgentDesk, open_for_calls
from megatalker import Checkpoint
from megatalker.errors import UnsupportedError
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_benchmarks.vowels import RATE as MICROPHONE_RATE
from megatalker_benchmarks.vowels import utterance
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent import services
from megatalker_pipecat.agent.phone import PROVIDERS, missing_keys
from megatalker_pipecat.agent.transports import offer, offered, transport_for
from phone_call import RATE, WIRES, PhoneCall, from_ulaw, phone_call, to_ulaw
from pipecat_stage import closing
from session_stage import fakes, pool_of
from waiting import HANG_S

LOW, HIGH = 110.0, 190.0
ASKED, STOPPED = "Tell me about the sea.", "Wait, stop."
STORY = "The sea is wide and deep. It covers most of the earth. Many animals live in it. Sailors crossed it long ago."
SENTENCE_FRAMES = 30
THOUGHT_S, BARGE_IN_S = 0.5, 1.0
LOUD = 5000


@pytest.fixture(autouse=True)
def engine(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(fakes(SENTENCE_FRAMES), tiny_custom_voice))
    for name in ("OpenAILLMService", "OpenAISTTService"):
        monkeypatch.setattr(services, name, closing(getattr(services, name)))
    for name in (key for provider in PROVIDERS.values() for key in provider.hang_up_keys):
        monkeypatch.delenv(name, raising=False)


def test_the_tests_speak_ulaw() -> None:
    assert to_ulaw(np.array([0, 1000, -1000, 32767, -32768], np.int16)) == bytes([0xFF, 0xCE, 0x4E, 0x80, 0x00])
    every = bytes(code for code in range(256) if code != 0x7F)  # the other zero
    assert to_ulaw(from_ulaw(every)) == every


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_whole_call_with_barge_in() -> None:
    with MockOpenAI({LOW: ASKED, HIGH: STOPPED}, {ASKED: STORY, STOPPED: "All right."}, THOUGHT_S) as mock:
        desk = AgentDesk(mock.url)
        async with open_for_calls(desk) as address, phone_call(address, "twilio") as call:
            call.say(utterance("aeiaeiaei", LOW), MICROPHONE_RATE)
            await call.until(lambda call: call.seconds() > BARGE_IN_S)
            call.say(utterance("aeiaeia", HIGH), MICROPHONE_RATE)
            await call.until(lambda call: len(call.heard) == 3)  # a new one each time that the caller begins to speak
            await call.until(lambda call: call.seconds() > BARGE_IN_S)
            await call.socket.send_json({"event": "stop", "streamSid": "MZ1", "stop": {"callSid": "CA1"}})
        await asyncio.wait_for(desk.over.wait(), HANG_S)

    assert mock.heard == pytest.approx([LOW, HIGH], rel=0.1)
    assert set(mock.rates) == {RATE}, "the sample rate of the line"
    assert_interrupted(call)
    system, user, assistant, stop = mock.conversations[-1]
    assert [message["role"] for message in (system, user, assistant, stop)] == ["system", "user", "assistant", "user"]
    assert STORY.startswith(assistant["content"]), "only the heard part of the story"
    assert 0 < len(assistant["content"]) < len(STORY)


def assert_interrupted(call: PhoneCall) -> None:
    """The caller heard a part of the story, aloud, and then the answer."""
    before, story, answer = (np.concatenate([np.empty(0, np.int16), *pieces]) for pieces in call.heard)
    assert len(before) == 0, "the agent is silent until the caller speaks"
    assert BARGE_IN_S < len(story) / RATE < 4 * SENTENCE_FRAMES * 0.08
    assert len(answer) / RATE > BARGE_IN_S
    assert min(np.abs(story.astype(int)).max(), np.abs(answer.astype(int)).max()) > LOUD


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_call_of_each_provider_is_greeted(provider: str) -> None:
    desk = AgentDesk("http://127.0.0.1:9/v1", greeting="Good morning.")
    async with open_for_calls(desk) as address, phone_call(address, provider) as call:
        await call.until(lambda call: call.seconds() >= SENTENCE_FRAMES * 0.08)
    await asyncio.wait_for(desk.over.wait(), HANG_S)
    assert np.abs(np.concatenate(call.heard[0]).astype(int)).max() > LOUD


# ---- what is offered


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TRANSPORT_ROUTE_DEPENDENCIES", "TRANSPORT_INSTALL_HINTS"):
        monkeypatch.setattr(run, name, dict(getattr(run, name)))
    monkeypatch.setattr(run, "_is_module_available", lambda module: "megatalker" not in module)  # all extras there
    return


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("listens", [True, False])
def test_the_runner_offers_what_works_whatever_is_installed(listens: bool) -> None:
    app = FastAPI()
    offer(app, listens=listens, only=None)
    enabled, disabled = run._transport_status_lists()
    assert enabled == (["webrtc", "telephony", "websocket"] if listens else ["webrtc", "websocket"])
    assert set(disabled) >= {"daily (not offered here)", "livekit (not offered here)", "moq (not offered here)"}
    status = TestClient(app).get("/status").json()
    assert status["transports"] == offered(listens=listens)


def test_keys_that_are_missing_to_hang_up() -> None:
    assert missing_keys("exotel", {}) == []
    assert missing_keys("twilio", {"TWILIO_ACCOUNT_SID": "a"}) == ["TWILIO_AUTH_TOKEN"]
    by_key = {"TWILIO_ACCOUNT_SID": "a", "TWILIO_API_KEY": "b", "TWILIO_API_SECRET": "c"}
    assert missing_keys("twilio", by_key) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("hangs_up", [True, False])
async def test_the_agent_hangs_up_where_it_has_the_keys(
    provider: str, hangs_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROVIDERS[provider].hang_up_keys if hangs_up else ():
        monkeypatch.setenv(name, "key")
    transport, by_phone = await transport_for(
        WebSocketRunnerArguments(websocket=Hello(WIRES[provider].hello)), listens=True
    )
    assert isinstance(transport, FastAPIWebsocketTransport)
    assert by_phone
    params = transport._params.serializer._params
    assert getattr(params, "auto_hang_up", hangs_up) == hangs_up  # Exotel's cannot
    await transport.cleanup()


@pytest.mark.asyncio
async def test_a_stranger_on_the_line_is_told_who_is_expected() -> None:
    stranger = WebSocketRunnerArguments(websocket=Hello([{"event": "hi"}, {"event": "hello"}]))
    with pytest.raises(UnsupportedError, match=r"no provider that is offered \(twilio, telnyx, plivo, exotel\)"):
        await transport_for(stranger, listens=True)


class Hello:
    """A socket on which somebody has begun to speak."""

    def __init__(self, hello: list[dict[str, Any]]) -> None:
        self.hello = hello

    async def iter_text(self) -> AsyncIterator[str]:
        for message in self.hello:
            yield json.dumps(message)

"""``WS /v1/realtime`` of the agent: events that it refuses, limits, and who may come in."""

import asyncio
import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent_desk import AgentDesk, open_for_calls
from agent_process import QUICK, agent_at_work
from agent_realtime import ANSWERS, GREETING, agent, push_to_talk, say, use_stand_ins
from megatalker import Checkpoint, Settings
from megatalker_pipecat import MegatalkerTTSService
from realtime_client import talking, transcript
from session_stage import DecodeFault, fakes, pool_of
from waiting import HANG_S

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture(autouse=True)
def engine(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(tiny_custom_voice, monkeypatch)


# ---- what it refuses


FUNCTION = {"type": "function", "name": "weather"}
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("input_audio_buffer.append", {"audio": "?"}, "audio", "is not base64"),
    ("input_audio_buffer.append", {"audio": "AAAA"}, "audio", "3 bytes, expected 16-bit samples"),
    ("input_audio_buffer.append", {}, "audio", "audio"),
    ("input_audio_buffer.append", {"audio": 5}, "audio", "audio"),
    ("input_audio_buffer.commit", {}, "type", "set turn_detection to null"),
    ("input_audio_buffer.shake", {}, "type", "this agent takes session.update"),
    ("session.update", {"session": {"tools": [{"type": "mcp"}]}}, "session.tools.0.type", "'function'"),
    ("session.update", {"session": {"tools": [{"type": "function", "name": "a b"}]}}, "session.tools.0.name", "a b"),
    ("session.update", {"session": {"tools": [FUNCTION, FUNCTION]}}, "session.tools", "two functions of one name"),
    ("session.update", {"session": {"tool_choice": FUNCTION}}, "session.tool_choice", "none of session.tools"),
    ("response.create", {"response": {"tools": []}}, "response.tools", "session.update"),
    ("session.update", {"session": {"speed": 2}}, "session.audio.output.speed", "speed is not 1"),
    ("session.update", {"session": {"voice": "nobody"}}, "session.audio.output.voice", "expected aiden"),
    ("session.update", {"session": {"megatalker": {"seed": 1}}}, "session.megatalker", "megatalker serve alone"),
    ("session.update", {"session": {"turn_detection": {"type": "magic"}}}, "session.turn_detection.type", "magic"),
    ("response.create", {"response": {"instructions": "Sing."}}, "response.instructions", "session.update"),
    ("response.create", {"response": {"conversation": "none"}}, "response.conversation", "part of the"),
    ("response.cancel", {}, "response_id", "no response is spoken"),
    ("conversation.item.delete", {"item_id": "none"}, "item_id", "no item 'none'"),
    (
        "conversation.item.create",
        {"item": {"type": "function_call_output", "output": "4", "call_id": "mine"}},
        "item.call_id",
        "no function call 'mine'",
    ),
    ("conversation.item.create", {"item": {"type": "function_call", "call_id": "mine"}}, "item", "name is missing"),
]
"""Events that cannot be obeyed, the field that is named, and a part of the message."""


async def test_bad_events_are_told_and_end_nothing() -> None:
    async with agent() as (voice, _, _):
        for kind, fields, param, message in BAD:
            error = await voice.refusal(kind, **fields)
            assert message in error.message
            assert error.param == param, message
        assert (await voice.update()).type == "realtime"


async def test_an_empty_buffer_is_not_committed_and_a_full_one_takes_no_more() -> None:
    async with agent() as (voice, _, _):
        await push_to_talk(voice)
        assert (await voice.refusal("input_audio_buffer.commit")).code == "input_audio_buffer_commit_empty"
        await say(voice, bytes(960))
        assert (await voice.refusal("input_audio_buffer.commit")).code == "input_audio_buffer_commit_empty"
        await say(voice, bytes(119 * 48_000), part=480_000)
        error = await voice.refusal("input_audio_buffer.append", audio=base64.b64encode(bytes(480_000)).decode())
        assert error.code == "input_audio_buffer_full"
        await voice.send("input_audio_buffer.clear")
        await voice.hear("input_audio_buffer.cleared")
        assert (await voice.refusal("input_audio_buffer.commit")).code == "input_audio_buffer_commit_empty"


async def test_an_agent_without_speech_to_text_takes_text() -> None:
    desk = AgentDesk(None)
    async with open_for_calls(desk) as address, talking(f"http://{address}") as voice:
        assert (await voice.refusal("input_audio_buffer.append", audio="AAAA")).code == "unsupported"
        await voice.write("So it is.")
        await voice.send("response.create")
        assert transcript(await voice.hear_until("response.done")) == "So it is."


async def test_a_model_that_fails_is_told() -> None:
    async with agent() as (voice, _, _):
        await voice.write("Nobody knows an answer to this.")
        await voice.send("response.create")
        done = (await voice.hear_until("response.done"))[-1].response
        assert (done.status, done.output) == ("failed", [])
        assert "Error during completion" in done.status_details.error.message
        await voice.write(GREETING)
        await voice.send("response.create")
        assert transcript(await voice.hear_until("response.done")) == ANSWERS[GREETING]


async def test_speech_that_fails_is_told(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = pool_of(fakes(on_decode=DecodeFault(5)), tiny_custom_voice)
    monkeypatch.setattr(MegatalkerTTSService, "engines", broken)
    async with agent() as (voice, _, _):
        await voice.write(GREETING)
        await voice.send("response.create")
        done = (await voice.hear_until("response.done"))[-1].response
    assert done.status == "incomplete"
    assert "the device is on fire" in done.status_details.error.message


# ---- limits


async def test_a_client_that_says_nothing_is_let_go() -> None:
    desk = AgentDesk("http://127.0.0.1:9/v1")
    desk.idle_timeout_s = 1.0
    async with open_for_calls(desk) as address, connect(f"ws://{address}/v1/realtime") as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
        await asyncio.wait_for(socket.wait_closed(), HANG_S)
        assert socket.close_code == 1000


async def test_connections_have_a_limit() -> None:
    desk = AgentDesk(None, Settings(server={"max_connections": 1}))
    async with (
        open_for_calls(desk) as address,
        talking(f"http://{address}"),
        connect(f"ws://{address}/v1/realtime") as socket,
    ):
        assert "max_connections" in json.loads(await socket.recv())["error"]["message"]
        await asyncio.wait_for(socket.wait_closed(), HANG_S)
        assert socket.close_code == 1013


async def test_messages_have_a_limit_and_a_client_that_only_errs_is_hung_up_on() -> None:
    desk = AgentDesk(None)
    async with open_for_calls(desk) as address, connect(f"ws://{address}/v1/realtime") as socket:
        await socket.recv()
        for message, told in (("A" * (1 << 20) + "A", "at most 1048576"), (b"binary", "binary"), ("[]", "an object")):
            await socket.send(message)
            assert told in json.loads(await socket.recv())["error"]["message"]
        with suppress(ConnectionClosed):
            for _ in range(1000):
                await socket.send("no JSON")
                assert json.loads(await socket.recv())["type"] == "error"
        assert socket.close_code == 1008


async def test_a_browsers_subprotocol_is_chosen() -> None:
    desk = AgentDesk(None)
    offered: Any = ["realtime", "openai-insecure-api-key.any"]
    async with (
        open_for_calls(desk) as address,
        connect(f"ws://{address}/v1/realtime", subprotocols=offered) as socket,
    ):
        assert socket.subprotocol == "realtime"


# ---- the real agent


async def test_the_runners_tokens_and_origins_count(tmp_path: Path) -> None:
    guarded = ["--text", "--ws-auth", "token", "--allowed-origins", "https://app.example.com"]
    with agent_at_work(tmp_path, *guarded, environ=QUICK) as at_work:
        url, good, bad = f"ws://{at_work.address}/v1/realtime", "https://app.example.com", "https://evil.example.com"
        async with aiohttp.ClientSession(f"http://{at_work.address}") as http:

            async def token() -> str:
                async with http.post("/start", json={"transport": "websocket"}) as reply:
                    return str((await reply.json())["token"])

            for key, origin in ((None, good), ("wrong", good), (await token(), bad)):
                headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                with pytest.raises(InvalidStatus):
                    await connect(url, additional_headers=headers, origin=origin)
            headers = {"Authorization": f"Bearer {await token()}"}
        async with connect(url, additional_headers=headers, origin=good) as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"
            part = {"type": "input_text", "text": GREETING}
            item = {"type": "message", "role": "user", "content": [part]}
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create"}))
            events: list[dict[str, Any]] = []
            async with asyncio.timeout(HANG_S):
                while not events or events[-1]["type"] != "response.done":
                    events.append(json.loads(await socket.recv()))
    assert events[-1]["response"]["status"] == "completed"
    said = [event["delta"] for event in events if event["type"] == "response.output_audio_transcript.delta"]
    assert "".join(said) == GREETING

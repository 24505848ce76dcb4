"""The telephone example, as Twilio and Telnyx talk to it; Pipecat's serializers for both say what its messages mean."""

import asyncio
import base64
import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pipecat.frames.frames import AudioRawFrame
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.serving.samples import SampleEncoder, SampleFormat, SampleFrames
from serving import ENDLESS, TEXT, Served, Server, endless
from waiting import HANG_S, eventually

pytestmark = pytest.mark.asyncio

TWILIO = {
    "event": "start",
    "sequenceNumber": "1",
    "start": {
        "accountSid": "AC0",
        "streamSid": "MZ7",
        "callSid": "CA3",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {},
    },
    "streamSid": "MZ7",
}
TELNYX = {
    "event": "start",
    "sequence_number": "1",
    "start": {
        "user_id": "u1",
        "call_control_id": "v3:c1",
        "media_format": {"encoding": "PCMA", "sample_rate": 8000, "channels": 1},
    },
    "stream_id": "s9",
}
CALLERS_SOUND = {"event": "media", "media": {"track": "inbound", "payload": base64.b64encode(b"\xff" * 160).decode()}}


@pytest.fixture(scope="module")
def bridge() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "phone_call" / "bridge.py"
    spec = importlib.util.spec_from_file_location("example_phone_call", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def calling(bridge: ModuleType, engine: SpeechEngine, *messages: Any) -> AsyncIterator[ClientConnection]:
    async with serve(lambda socket: bridge.answer(socket, engine, TEXT), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as socket, asyncio.timeout(HANG_S):
            for message in ({"event": "connected"}, *messages):
                await socket.send(json.dumps(message))
            yield socket


async def hear(socket: ClientConnection) -> list[dict[str, Any]]:
    """Everything up to the mark."""
    heard = [json.loads(await socket.recv())]
    while heard[-1]["event"] != "mark":
        heard.append(json.loads(await socket.recv()))
    return heard


def played(messages: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(message["media"]["payload"]) for message in messages if message["event"] == "media"]


@pytest.mark.parametrize(("start", "kind"), [(TWILIO, "pcm_mulaw"), (TELNYX, "pcm_alaw")], ids=["twilio", "telnyx"])
async def test_a_call_hears_frames_of_20_ms_and_a_mark(
    bridge: ModuleType, shared: Served, start: dict[str, Any], kind: SampleFormat
) -> None:
    class Seeded:
        def speak(self, text: str) -> Any:
            return shared.engine.speak(text, seed=5)

    async with calling(bridge, Seeded(), start, CALLERS_SOUND) as socket:
        heard = await hear(socket)
        assert all(message.get("streamSid") == start.get("streamSid") for message in heard)
        frames = SampleFrames(SampleEncoder(kind))
        speech = await asyncio.to_thread(shared.engine.speak(TEXT, seed=5).read_all)
        assert played(heard) == [*frames.push(speech), *frames.finish()]
        assert {len(frame) for frame in played(heard)} == {160}
        await socket.send(json.dumps({"event": "mark", "mark": heard[-1]["mark"]}))
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_the_messages_are_those_that_pipecat_sends_and_understands(bridge: ModuleType) -> None:
    frame = SampleEncoder("pcm_mulaw").silence * 160
    twilio = TwilioFrameSerializer("MZ7", params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
    telnyx = TelnyxFrameSerializer("s9", "PCMU", "PCMU", params=TelnyxFrameSerializer.InputParams(auto_hang_up=False))
    telnyx_mulaw = {**TELNYX, "start": {"media_format": {"encoding": "PCMU"}}}
    for serializer, start in ((twilio, TWILIO), (telnyx, telnyx_mulaw)):
        sent = await serializer.serialize(AudioRawFrame(bytes(320), 8_000, 1))
        assert json.loads(bridge.Call.begun_by(start).media(frame)) == json.loads(sent)


async def test_a_pressed_key_cuts_the_speech_off(bridge: ModuleType, serve: Server) -> None:
    served = serve(endless(), **ENDLESS)
    async with calling(bridge, served.engine, TWILIO) as socket:
        await socket.recv()
        await socket.send(json.dumps({"event": "dtmf", "streamSid": "MZ7", "dtmf": {"track": "inbound", "digit": "1"}}))
        assert (await hear(socket))[-1]["mark"] == {"name": "said"}
        assert json.loads(await socket.recv()) == {"event": "clear", "streamSid": "MZ7"}
        eventually(lambda: not served.engine.metrics().active, "the speech is over")


@pytest.mark.parametrize("last", [{"event": "stop"}, {"no": "event"}, {**TELNYX, "start": {}}, []], ids=str)
async def test_a_call_that_stops_or_makes_no_sense_ends_its_speech(
    bridge: ModuleType, serve: Server, last: Any
) -> None:
    served = serve(endless(), **ENDLESS)
    async with calling(bridge, served.engine, TWILIO) as socket:
        await socket.recv()
        await socket.send(json.dumps(last))
        async for _ in socket:
            pass  # until the bridge hangs up
    eventually(lambda: not served.engine.metrics().active, "the speech is over")

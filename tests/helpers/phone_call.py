"""The far end of a telephone call as its provider's media stream: 20 ms of speech or silence a message, at its pace."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import soxr
from numpy.typing import NDArray

from waiting import HANG_S

RATE, PACKET_S = 8000, 0.02
BIAS, CLIP = 132, 32635

Samples = NDArray[np.int16]


def to_ulaw(samples: Samples) -> bytes:
    """G.711 μ-law."""
    wide = samples.astype(np.int32)
    size = np.minimum(np.abs(wide), CLIP) + BIAS
    exponent = np.floor(np.log2(size)).astype(np.int32) - 7
    mantissa = (size >> (exponent + 3)) & 0x0F
    return (~(((wide < 0) << 7) | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes()


def from_ulaw(data: bytes) -> Samples:
    code = ~np.frombuffer(data, np.uint8).astype(np.int32) & 0xFF
    size = ((((code & 0x0F) << 3) + BIAS) << ((code >> 4) & 0x07)) - BIAS
    return np.where(code & 0x80, -size, size).astype(np.int16)


@dataclass(frozen=True)
class Wire:
    """The message format of a provider."""

    hello: list[dict[str, Any]]
    media: Callable[[str], dict[str, Any]]
    """The message that carries a payload to the agent."""
    speech: str
    """The event that carries one from the agent."""
    clear: dict[str, Any]
    """The agent's message that discards audio which has not been played."""
    encode: Callable[[Samples], bytes] = to_ulaw
    decode: Callable[[bytes], Samples] = from_ulaw


WIRES = {
    "twilio": Wire(
        [
            {"event": "connected", "protocol": "Call", "version": "1.0.0"},
            {
                "event": "start",
                "sequenceNumber": "1",
                "streamSid": "MZ1",
                "start": {
                    "streamSid": "MZ1",
                    "callSid": "CA1",
                    "accountSid": "AC1",
                    "tracks": ["inbound"],
                    "customParameters": {},
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                },
            },
        ],
        lambda payload: {"event": "media", "streamSid": "MZ1", "media": {"track": "inbound", "payload": payload}},
        "media",
        {"event": "clear", "streamSid": "MZ1"},
    ),
    "telnyx": Wire(
        [
            {"event": "connected", "version": "1.0.0"},
            {
                "event": "start",
                "stream_id": "32de",
                "start": {"call_control_id": "v3:1", "media_format": {"encoding": "PCMU", "sample_rate": 8000}},
            },
        ],
        lambda payload: {"event": "media", "stream_id": "32de", "media": {"track": "inbound", "payload": payload}},
        "media",
        {"event": "clear"},
    ),
    "plivo": Wire(
        [
            {"event": "start", "start": {"streamId": "20170ada", "callId": "9a4b"}},
            {"event": "media", "streamId": "20170ada", "media": {"track": "inbound", "payload": ""}},
        ],
        lambda payload: {"event": "media", "streamId": "20170ada", "media": {"track": "inbound", "payload": payload}},
        "playAudio",
        {"event": "clearAudio", "streamId": "20170ada"},
    ),
    "exotel": Wire(
        [
            {"event": "connected"},
            {
                "event": "start",
                "stream_sid": "EX1",
                "start": {"stream_sid": "EX1", "call_sid": "c1", "account_sid": "a1", "from": "1", "to": "2"},
            },
        ],
        lambda payload: {"event": "media", "stream_sid": "EX1", "media": {"payload": payload}},
        "media",
        {"event": "clear", "stream_sid": "EX1"},
        encode=lambda samples: samples.astype("<i2").tobytes(),
        decode=lambda data: np.frombuffer(data, "<i2").astype(np.int16),
    ),
}
"""Messages in the form that each provider's documentation gives."""


@dataclass
class PhoneCall:
    """A call under way."""

    wire: Wire
    socket: aiohttp.ClientWebSocketResponse
    heard: list[list[Samples]] = field(default_factory=lambda: [[]])
    """The agent's audio, one item for each message; a new list begins whenever the agent discards what was not yet
    played.
    """
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list["asyncio.Task[None]"] = field(default_factory=list)
    _to_say: list[Samples] = field(default_factory=list)

    def begin(self) -> None:
        """Talk and listen."""
        self.ends = [asyncio.create_task(self._talk()), asyncio.create_task(self._listen())]

    async def hang_up(self) -> None:
        """The provider closes the stream."""
        talking, listening = self.ends
        talking.cancel()
        await asyncio.wait([talking])
        assert talking.cancelled(), talking
        await self.socket.close()
        await listening

    def say(self, samples: Samples, rate: int) -> None:
        """Speak as soon as all earlier speech has ended."""
        phone = soxr.resample(samples.astype(np.float32), rate, RATE)
        packet = int(RATE * PACKET_S)
        padded = np.pad(np.clip(phone, -32768, 32767).astype(np.int16), (0, -len(phone) % packet))
        self._to_say += list(padded.reshape(-1, packet))

    async def until(self, condition: Callable[["PhoneCall"], bool]) -> None:
        """Wait for what the agent sends."""
        async with asyncio.timeout(HANG_S):
            while not condition(self):
                self.news.clear()
                news = asyncio.create_task(self.news.wait())
                await asyncio.wait([news, *self.ends], return_when=asyncio.FIRST_COMPLETED)
                assert news.done(), f"the call has ended: {self.ends}"

    def seconds(self) -> float:
        """Seconds of audio that the caller hears, or will."""
        return sum(map(len, self.heard[-1])) / RATE

    async def _talk(self) -> None:
        silence = np.zeros(int(RATE * PACKET_S), np.int16)
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            packet = self._to_say.pop(0) if self._to_say else silence
            payload = base64.b64encode(self.wire.encode(packet)).decode()
            await self.socket.send_str(json.dumps(self.wire.media(payload)))
            due += PACKET_S
            await asyncio.sleep(due - loop.time())

    async def _listen(self) -> None:
        async for message in self.socket:
            event = json.loads(message.data)
            if event == self.wire.clear:
                self.heard.append([])
            elif event["event"] == self.wire.speech:
                self.heard[-1].append(self.wire.decode(base64.b64decode(event["media"]["payload"])))
            else:
                raise AssertionError(f"no provider knows {event}")
            self.news.set()


@asynccontextmanager
async def phone_call(address: str, provider: str) -> AsyncIterator[PhoneCall]:
    """Call an agent; leaving the block hangs up."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"ws://{address}/ws") as socket:
        call = PhoneCall(WIRES[provider], socket)
        for message in call.wire.hello:
            await socket.send_str(json.dumps(message))
        call.begin()
        try:
            yield call
        finally:
            await call.hang_up()

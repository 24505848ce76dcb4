"""Clients of an agent, for tests: they say something in typed words and collect what comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from pipecat.frames.frames import InputAudioRawFrame, InputTransportMessageFrame, OutputTransportMessageFrame
from pipecat.serializers.protobuf import ProtobufFrameSerializer

from waiting import HANG_S

AUDIBLE = 0.01


@dataclass
class AgentOutput:
    """Audio and messages that an agent sent."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    audible_s: float = 0.0
    """Time in which something was louder than ``AUDIBLE`` of full scale."""

    def hear(self, samples: np.ndarray[Any, np.dtype[np.int16]], rate: int) -> None:
        if np.abs(samples.astype(np.float32)).max(initial=0) > AUDIBLE * 32767:
            self.audible_s += len(samples) / rate

    def texts(self, kind: str) -> list[str]:
        return [message["data"]["text"] for message in self.messages if message["type"] == kind]

    def spoken(self) -> list[str]:
        """Sentences that were spoken to the end."""
        outputs = [message["data"] for message in self.messages if message["type"] == "bot-output"]
        return [output["text"] for output in outputs if output["spoken_status"] == "completed"]

    def is_over(self) -> bool:
        """The last word may be reported a little after the end of the sound."""
        return bool(self.spoken()) and any(message["type"] == "bot-stopped-speaking" for message in self.messages)


@asynccontextmanager
async def webrtc_call(address: str) -> AsyncIterator["WebRTCCall"]:
    """Call the agent as the browser page does, with no microphone; yields when the agent is ready."""
    call = WebRTCCall()
    async with aiohttp.ClientSession(f"http://{address}") as session:
        async with session.post("/start", json={"transport": "webrtc"}) as reply:
            started = await reply.json()
        offer = await call.offer()
        async with session.post(f"/sessions/{started['sessionId']}/api/offer", json=offer) as reply:
            answer = await reply.json()
    await call.peer.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
    try:
        await asyncio.wait_for(call.ready.wait(), HANG_S)
        yield call
    finally:
        await call.peer.close()
        await asyncio.gather(*call.listening)


class WebRTCCall:
    """The client's end of a WebRTC connection."""

    def __init__(self) -> None:
        self.heard = AgentOutput()
        self.ready, self.over, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.listening: list[asyncio.Future[None]] = []
        self.peer = RTCPeerConnection()
        self.peer.addTransceiver("audio", direction="recvonly")
        self.peer.on("track", lambda track: self.listening.append(asyncio.ensure_future(self._listen(track))))
        self._channel = self.peer.createDataChannel("rtvi")
        self._channel.on("open", self._begin)
        self._channel.on("message", self._receive)

    async def offer(self) -> dict[str, str]:
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return {"sdp": self.peer.localDescription.sdp, "type": self.peer.localDescription.type}

    def send(self, message: dict[str, Any]) -> None:
        self._channel.send(json.dumps(message))

    def _begin(self) -> None:
        self._channel.send("ping")
        self.send(client_ready())

    def _receive(self, text: str) -> None:
        message = json.loads(text)
        if message.get("message", {}).get("type") == "peerLeft":
            self.left.set()
        if message.get("label") == "rtvi-ai":
            self.heard.messages.append(message)
            if message["type"] == "bot-ready":
                self.ready.set()
            if self.heard.is_over():
                self.over.set()

    async def _listen(self, track: Any) -> None:
        try:
            while True:
                frame = await track.recv()
                self.heard.hear(frame.to_ndarray()[0][:: len(frame.layout.channels)], frame.sample_rate)
        except MediaStreamError:
            return


async def say_over_webrtc(address: str, words: str) -> AgentOutput:
    """Say something in a call of its own."""
    async with webrtc_call(address) as call:
        call.send(send_text(words))
        await asyncio.wait_for(call.over.wait(), HANG_S)
    return call.heard


async def say_over_websocket(address: str, words: str) -> AgentOutput:
    """Talk as a client of Pipecat's websocket transport does, until it has been answered or the agent has left."""
    heard, serializer = AgentOutput(), ProtobufFrameSerializer()
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://{address}/ws-client") as socket,
        asyncio.timeout(HANG_S),
    ):

        async def send(message: dict[str, Any]) -> None:
            data = await serializer.serialize(OutputTransportMessageFrame(message))
            assert isinstance(data, bytes)
            await socket.send_bytes(data)

        await send(client_ready())
        async for message in socket:
            frame = await serializer.deserialize(message.data)
            if isinstance(frame, InputAudioRawFrame):
                heard.hear(np.frombuffer(frame.audio, np.int16), frame.sample_rate)
            if isinstance(frame, InputTransportMessageFrame):
                heard.messages.append(frame.message)
                if frame.message["type"] == "bot-ready":
                    await send(send_text(words))
            if heard.is_over():
                break
    return heard


def client_ready() -> dict[str, Any]:
    about = {"library": "megatalker-tests"}
    return {"label": "rtvi-ai", "type": "client-ready", "id": "1", "data": {"version": "2.2.0", "about": about}}


def send_text(words: str) -> dict[str, Any]:
    return {"label": "rtvi-ai", "type": "send-text", "id": "2", "data": {"content": words}}

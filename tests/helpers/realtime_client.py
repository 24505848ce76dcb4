"""OpenAI's own Realtime client, and the same speech by HTTP to compare with."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from serving import TEXT, Served
from waiting import HANG_S

OPENING = ["response.created", "response.output_item.added", "conversation.item.added", "response.content_part.added"]
CLOSING = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]
SEED = {"megatalker": {"seed": 5}}


class RealtimeClient:
    """A connection of OpenAI's client, and what it has heard."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection

    async def hear(self, kind: str) -> Any:
        """The next event, which must be of this type."""
        async with asyncio.timeout(HANG_S):
            event = await self.connection.recv()
        assert event.type == kind, event
        return event

    async def hear_until(self, kind: str) -> list[Any]:
        """Events up to the first of this type."""
        events: list[Any] = []
        async with asyncio.timeout(HANG_S):
            while not events or events[-1].type != kind:
                events.append(await self.connection.recv())
        return events

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send({"type": kind, **fields})  # type: ignore[arg-type,misc]

    async def update(self, **session: Any) -> Any:
        await self.send("session.update", session={"type": "realtime", **session})
        return (await self.hear("session.updated")).session

    async def refusal(self, kind: str, **fields: Any) -> Any:
        """The error that an event earns; the connection goes on."""
        await self.send(kind, event_id="mine", **fields)
        error = (await self.hear("error")).error
        assert error.event_id == "mine"
        return error

    async def refusal_amid(self, kind: str, **fields: Any) -> Any:
        """The same while something is spoken."""
        await self.send(kind, event_id="mine", **fields)
        return (await self.hear_until("error"))[-1].error

    async def write(self, text: str = TEXT, role: str = "user", **event: Any) -> Any:
        """Add a message; return the item."""
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        await self.send("conversation.item.create", item=item, **event)
        added = (await self.hear("conversation.item.added")).item
        assert (await self.hear("conversation.item.done")).item == added
        return added

    async def speak(self, **response: Any) -> list[Any]:
        """The events of a response."""
        await self.send("response.create", response=SEED | response)
        return await self.hear_until("response.done")

    async def begin(self) -> tuple[str, str]:
        """Begin a response; return its name and that of its item once it is heard."""
        await self.send("response.create", response=SEED)
        first = (await self.hear_until("response.output_audio.delta"))[-1]
        return first.response_id, first.item_id


def client(served: Served | str, key: str = "any") -> openai.AsyncOpenAI:
    """OpenAI's client of a server, or of an URL."""
    address = (served if isinstance(served, str) else served.url) + "/v1"
    return openai.AsyncOpenAI(base_url=address, websocket_base_url=address.replace("http", "ws"), api_key=key)


@asynccontextmanager
async def talking(served: Served | str, key: str = "any", model: str = "gpt-realtime") -> AsyncIterator[RealtimeClient]:
    async with (
        client(served, key) as sdk,
        sdk.realtime.connect(model=model) as connection,
    ):
        voice = RealtimeClient(connection)
        await voice.hear("session.created")
        yield voice


def audio(events: list[Any]) -> bytes:
    return b"".join(base64.b64decode(event.delta) for event in events if event.type.endswith("audio.delta"))


def transcript(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type.endswith("audio_transcript.delta"))


def spoken(served: Served, text: str = TEXT, **wishes: Any) -> bytes:
    """The same by HTTP."""
    body = {"input": text, "response_format": "pcm", "seed": 5, **wishes}
    answer = httpx.post(served.url + "/v1/audio/speech", json=body, timeout=HANG_S)
    assert answer.status_code == 200, answer.text
    return answer.content

"""Callers that behave while others attack: how long they wait for a first chunk, and what a steady listener hears."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import connect

from megatalker.cli.load.drive import TEXTS
from megatalker.cli.load.player import Player
from megatalker.cli.load.report import percentiles_ms
from megatalker.serving.protocol.messages import Open
from megatalker.serving.protocol.packets import unpack

HELLO = "Hello."
PATIENCE_S = 60.0
AHEAD_S = 0.5
"""Audio that the steady listener has in hand at most: a server that stands still for longer is heard."""


@dataclass
class Victims:
    """Latencies and failures that the victims of an attack met with during one phase."""

    http_s: list[float] = field(default_factory=list)
    websocket_s: list[float] = field(default_factory=list)
    """Until the first chunk, with the time to connect."""
    failed: Counter[str] = field(default_factory=Counter)
    gap_s: float = 0.0
    """The longest that the steady listener heard."""

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "http_first_chunk_ms": percentiles_ms(self.http_s),
            "websocket_first_chunk_ms": percentiles_ms(self.websocket_s),
            "failed": dict(self.failed),
            "gap_ms": self.gap_s * 1e3,
        }


async def behave(url: str, key: str | None, rate: float, seconds: float) -> Victims:
    """Ask for ``rate`` short texts a second on each route, at random moments, and listen to a long one meanwhile."""
    victims = Victims()
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    listening = asyncio.create_task(_listen(url, headers, victims))
    await asyncio.gather(
        _ask(lambda: _over_http(url, headers, victims), victims, rate, seconds),
        _ask(lambda: _over_websocket(url, headers, victims), victims, rate, seconds),
    )
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return victims


async def _ask(one: Callable[[], Awaitable[None]], victims: Victims, rate: float, seconds: float) -> None:
    until, asked = time.monotonic() + seconds, []

    async def counted() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await one()
        except Exception as error:
            victims.failed[f"{type(error).__name__}: {error}"[:100]] += 1

    while time.monotonic() < until:
        asked.append(asyncio.create_task(counted()))
        await asyncio.sleep(random.expovariate(rate))
    await asyncio.gather(*asked)


async def _over_http(url: str, headers: dict[str, str], victims: Victims) -> None:
    address, began = urlsplit(url), time.monotonic()
    body = json.dumps({"input": HELLO, "response_format": "pcm"})
    sent = {"host": address.netloc, "content-type": "application/json", "connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**sent, "content-length": str(len(body))}.items())
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"POST /v1/audio/speech HTTP/1.1\r\n{head}\r\n{body}".encode())
        status = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if status != b"200":
            raise RuntimeError(f"status {status.decode()}")
        await reader.readexactly(1)
        victims.http_s.append(time.monotonic() - began)
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


async def _over_websocket(url: str, headers: dict[str, str], victims: Victims) -> None:
    player = await _hear(url, headers, Open(id="hello", text=HELLO))
    assert player.first_at is not None, "the utterance is done"
    victims.websocket_s.append(player.first_at - player.requested_at)


async def _listen(url: str, headers: dict[str, str], victims: Victims) -> None:
    while True:
        player = Player(time.monotonic())
        try:
            await _hear(url, headers, Open(id="long", text=" ".join(TEXTS), max_ahead_s=AHEAD_S), player)
        except Exception as error:
            victims.failed[f"the listener: {type(error).__name__}: {error}"[:100]] += 1
            await asyncio.sleep(1.0)
        finally:
            still_silent = time.monotonic() - player.dry_at if player.first_at is not None else 0.0
            victims.gap_s = max(victims.gap_s, player.worst_gap_s, still_silent)


async def _hear(url: str, headers: dict[str, str], asked: Open, player: Player | None = None) -> Player:
    player = player or Player(time.monotonic())
    endpoint = url.replace("http", "ws", 1) + "/v1/speak"
    async with connect(endpoint, additional_headers=headers, compression=None, open_timeout=PATIENCE_S) as socket:
        await socket.send(asked.model_dump_json())
        async for heard in socket:
            if isinstance(heard, bytes):
                player.take(unpack(heard).pcm, time.monotonic())
                continue
            event = json.loads(heard)
            if event["type"] == "error":
                raise RuntimeError(event["error"]["message"])
            if event["type"] == "done":
                return player
    raise RuntimeError("the server hung up")

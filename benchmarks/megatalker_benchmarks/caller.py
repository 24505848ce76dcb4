"""A caller that listens, interrupts, hangs up, reads slowly and sends nonsense, and a tally of what it saw."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect

from megatalker.cli.bench.report import percentiles_ms
from megatalker.serving.protocol.messages import CancelMessage, Done, Failed, Finish, Open, Text, read_event
from megatalker.serving.protocol.packets import Packet, unpack

SILENCE_S = 120.0
"""A server that is silent for longer has lost the caller."""
PAUSE_S = 0.2
"""Seconds that a slow reader waits after each message."""
WORDS_A_SECOND = 10.0
TOO_LARGE = 2**63
POISON: Sequence[dict[str, int]] = ({"top_k": TOO_LARGE}, {"predictor_top_k": TOO_LARGE})
"""Sampling that no backend can do: it once ended the server for everybody."""
NONSENSE: Sequence[str | bytes] = (
    "nonsense",
    "{}",
    b"\0\1\2",
    '{"type": "text", "id": "nobody", "text": "hello"}',
    '{"type": "open", "id": "wrong", "max_frames": 0}',
    '{"type": "open", "id": "wrong", "text": "hello", "language": "klingon"}',
)
"""Messages each of which is answered by one error."""
BAD_BODIES: Sequence[dict[str, Any]] = ({"input": ""}, {"input": "a", "speed": 9}, {"input": "a", "voice_file": "é"})

TOO_LATE = "cancel: no utterance"
"""The server's answer to the cancel of an utterance that has just ended."""

Route = Literal["http", "websocket"]
ROUTES: tuple[Route, ...] = ("http", "websocket")
Act = Literal["listen", "feed", "cancel", "vanish", "dawdle", "babble", "http", "http vanish", "http babble"]
ACTS: dict[Act, int] = {
    "listen": 4,
    "feed": 3,
    "cancel": 3,
    "vanish": 2,
    "dawdle": 1,
    "babble": 2,
    "http": 3,
    "http vanish": 1,
    "http babble": 1,
}
"""Weights of the actions that a caller may do next."""


@dataclass(frozen=True)
class HeardSpeech:
    """Codes and samples received for one utterance."""

    codes: NDArray[np.int64]
    """``[frames, code groups]``"""
    samples: NDArray[np.int16]
    reason: str = ""
    """Reason of the end; empty if it was not received."""


@dataclass
class Tally:
    """Counts of what the callers saw; those of the server must agree."""

    acts: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[Route, str]] = field(default_factory=Counter)
    """Utterances that were heard to end, by reason."""
    vanished: Counter[Route] = field(default_factory=Counter)
    """Utterances that nobody heard the end of."""
    refused: Counter[Route] = field(default_factory=Counter)
    """Requests and messages that were answered by an error."""
    poisoned: int = 0
    compared: int = 0
    """Utterances, or their beginnings, held against those of a caller alone."""
    bit_equal: int = 0
    worst_lsb: int = 0
    disturbed: list[str] = field(default_factory=list)
    """Disturbed utterances: other codes, samples that differ by more than a bit, errors without a cause."""
    ttfc_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return what the JSON says of it."""
        return {
            "acts": dict(sorted(self.acts.items())),
            "ended": {f"{route} {reason}": count for (route, reason), count in sorted(self.ends.items())},
            "vanished": dict(self.vanished),
            "refused": dict(self.refused),
            "poisoned": self.poisoned,
            "compared": self.compared,
            "bit_equal": self.bit_equal,
            "worst_lsb": self.worst_lsb,
            "first_chunk_ms": percentiles_ms(self.ttfc_s),
        }

    def compare(self, what: str, heard: HeardSpeech, alone: HeardSpeech, *, whole: bool) -> None:
        """Compare an utterance with the same utterance of a caller alone, or with its beginning."""
        self.compared += 1
        count = len(heard.samples)
        if whole and count != len(alone.samples):
            self.disturbed.append(f"{what}: {count} samples, {len(alone.samples)} alone")
            return
        if not np.array_equal(heard.codes, alone.codes[: len(heard.codes)]):
            self.disturbed.append(f"{what}: other codes than alone")
            return
        apart = np.abs(heard.samples.astype(np.int32) - alone.samples[:count])
        worst = int(apart.max(initial=0))
        self.bit_equal += worst == 0
        self.worst_lsb = max(self.worst_lsb, worst)
        if worst > 1:
            self.disturbed.append(f"{what}: samples differ by {worst}")


@dataclass
class RudeCaller:
    """A caller that is rude at random.

    Args:
        url: of the server.
        texts: what to say; the number of a text is its seed.
        max_frames: of each utterance.
        tally: shared by all.
        alone: what each text sounds like, by its number and whether it is fed word by word. A caller that is
            alone fills it.
    """

    url: str
    texts: Sequence[str]
    max_frames: int
    tally: Tally
    alone: dict[tuple[int, bool], HeardSpeech]

    async def rehearse(self) -> None:
        """Listen to every text alone, given at once and fed word by word."""
        for number in range(len(self.texts)):
            for fed in (False, True):
                async with self._connect() as socket:
                    self.alone[number, fed] = await self._speak(socket, number, fed)

    async def call(self, chance: random.Random, until: float) -> None:
        """Do one thing after another, until a moment of the monotonic clock."""
        async with httpx.AsyncClient(base_url=self.url, timeout=SILENCE_S) as client:
            while time.monotonic() < until:
                (act,) = chance.choices(list(ACTS), list(ACTS.values()))
                self.tally.acts[act] += 1
                number = chance.randrange(len(self.texts))
                try:
                    if act.startswith("http"):
                        await self._ask(client, act, number, chance)
                    else:
                        async with self._connect() as socket:
                            await self._converse(socket, act, number, chance)
                except Exception as error:
                    self.tally.disturbed.append(f"{act} {number}: {type(error).__name__}: {error}")

    async def poison(self, sampling: dict[str, int]) -> None:
        """Ask on both routes for sampling that no backend can do."""
        self.tally.poisoned += 2
        async with self._connect() as socket:
            await socket.send(Open(id="poison", text="hi", sampling=sampling).model_dump_json())
            await self._hear_refusal(socket)
        async with httpx.AsyncClient(base_url=self.url, timeout=SILENCE_S) as client:
            await self._be_refused(client, {"input": "hi", "sampling": sampling})

    # ---- WebSocket

    def _connect(self) -> connect:
        url = self.url.replace("http", "ws", 1) + "/v1/speak"
        return connect(url, compression=None, max_queue=1, open_timeout=SILENCE_S)

    async def _converse(self, socket: ClientConnection, act: Act, number: int, chance: random.Random) -> None:
        fed = act == "feed" or chance.random() < 0.3
        frames = len(self.alone[number, fed].codes)
        leave_at = chance.randrange(1, max(2, frames)) if act in ("cancel", "vanish") else None
        babble = chance.sample(NONSENSE, 3) if act == "babble" else ()
        heard = await self._speak(
            socket,
            number,
            fed,
            leave_at=leave_at,
            vanish=act == "vanish",
            pause_s=PAUSE_S if act == "dawdle" else 0.0,
            babble=babble,
        )
        self.tally.compare(f"{act} {number}", heard, self.alone[number, fed], whole=leave_at is None)

    async def _speak(
        self,
        socket: ClientConnection,
        number: int,
        fed: bool,
        *,
        leave_at: int | None = None,
        vanish: bool = False,
        pause_s: float = 0.0,
        babble: Sequence[str | bytes] = (),
    ) -> HeardSpeech:
        """Listen to one utterance to its end, or until ``leave_at`` frames were heard."""
        text, unanswered = self.texts[number], len(babble)
        packets: list[Packet] = []
        opening = Open(id="it", text=None if fed else text, seed=number, max_frames=self.max_frames, return_codes=True)
        began = time.monotonic()
        await socket.send(opening.model_dump_json())
        feeding = asyncio.create_task(_feed(socket, text if fed else ""))
        try:
            for nonsense in babble:
                await socket.send(nonsense)
            reason = None
            while reason is None or unanswered:
                message = await _next(socket)
                if isinstance(message, bytes):
                    if not packets:
                        self.tally.ttfc_s.append(time.monotonic() - began)
                    packets.append(unpack(message))
                    if leave_at is not None and sum(packet.frames for packet in packets) >= leave_at:
                        if vanish:
                            self.tally.vanished["websocket"] += 1
                            socket.transport.abort()
                            break
                        feeding.cancel()  # text for an utterance that has ended would be refused
                        await socket.send(CancelMessage(id="it").model_dump_json())
                        await socket.send(NONSENSE[0])  # whose answer comes after that to a cancel that was too late
                        unanswered, leave_at = unanswered + 1, None
                    await asyncio.sleep(pause_s)
                    continue
                event = read_event(message)
                if isinstance(event, Done):
                    reason = event.finish_reason
                    self.tally.ends["websocket", reason] += 1
                elif isinstance(event, Failed):
                    if event.id == "it" or not unanswered:
                        raise RuntimeError(f"{event.error.type}: {event.error.message}")
                    self.tally.refused["websocket"] += 1
                    unanswered -= not event.error.message.startswith(TOO_LATE)
        finally:
            feeding.cancel()
        pcm = np.concatenate([packet.pcm for packet in packets])
        codes = [packet.codes for packet in packets if packet.codes is not None]
        return HeardSpeech(np.concatenate(codes), np.rint(pcm * 32767).astype(np.int16), reason or "")

    async def _hear_refusal(self, socket: ClientConnection) -> None:
        message = await _next(socket)
        event = None if isinstance(message, bytes) else read_event(message)
        if not isinstance(event, Failed):
            self.tally.disturbed.append(f"expected an error, got {event}")
        self.tally.refused["websocket"] += 1

    # ---- HTTP

    async def _ask(self, client: httpx.AsyncClient, act: Act, number: int, chance: random.Random) -> None:
        if act == "http babble":
            await self._be_refused(client, chance.choice(BAD_BODIES))
            return
        body = {
            "input": self.texts[number],
            "seed": number,
            "max_frames": self.max_frames,
            "response_format": "pcm",
        }
        alone, data = self.alone[number, False], b""
        async with client.stream("POST", "/v1/audio/speech", json=body) as response:
            response.raise_for_status()
            async for part in response.aiter_raw():
                data += part
                if act == "http vanish":
                    self.tally.vanished["http"] += 1
                    break
        if act == "http":
            self.tally.ends["http", alone.reason] += 1
        heard = HeardSpeech(alone.codes[:0], np.frombuffer(data[: len(data) // 2 * 2], "<i2"))
        self.tally.compare(f"{act} {number}", heard, alone, whole=act == "http")

    async def _be_refused(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        status = (await client.post("/v1/audio/speech", json=body)).status_code
        if status != 400:
            self.tally.disturbed.append(f"{json.dumps(body)} was answered {status}, expected 400")
        self.tally.refused["http"] += 1


async def _feed(socket: ClientConnection, text: str) -> None:
    words = text.split()
    for word in words:
        await socket.send(Text(id="it", text=word + " ").model_dump_json())
        await asyncio.sleep(1 / WORDS_A_SECOND)
    if words:
        await socket.send(Finish(id="it").model_dump_json())


async def _next(socket: ClientConnection) -> str | bytes:
    async with asyncio.timeout(SILENCE_S):
        return await socket.recv()

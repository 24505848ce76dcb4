"""Attacks on a server, each of which goes on until it is stopped: ``megatalker bench attack --help`` runs them.

An attack is a function of this module with the decorator ``attack``. It runs in a process of its own.
"""

import asyncio
import itertools
import resource
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from megatalker.cli.bench.drive import TEXTS
from megatalker_benchmarks.attack_target import PART, PING, TEXT, Stream, Target, frame, message

LONG = " ".join(TEXTS) * 3
SPEECH = "/v1/audio/speech"
ASSET = "/docs/assets/swagger-ui-bundle.js"
SMALL = 4096
"""Bytes that the kernel keeps for a client that does not read."""
PAUSE_S = 0.05
"""Seconds until an attacker that was refused tries again."""
BLOCK = 1 << 16
FOR_EVER_S = 1e6


@dataclass(frozen=True)
class AttackKind:
    """One kind of attack."""

    run: Callable[[Target], Awaitable[None]]
    anonymous: bool
    """Whether the attack is made on a server that asks for no key."""

    @property
    def about(self) -> str:
        """Description of the attack, from the docstring of the function that runs it."""
        return (self.run.__doc__ or "").strip()


ATTACKS: dict[str, AttackKind] = {}
"""All attacks by name."""

Run = Callable[[Target], Awaitable[None]]


def attack(*, anonymous: bool = False) -> Callable[[Run], Run]:
    """Add a function to :data:`ATTACKS`."""

    def add(run: Run) -> Run:
        ATTACKS[run.__name__] = AttackKind(run, anonymous)
        return run

    return add


async def again(count: int, once: Callable[[], Awaitable[None]]) -> None:
    """Run ``once`` ``count`` times at once, each again whenever it ends or the server ends it."""

    async def repeat() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await once()
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(repeat() for _ in range(count)))


async def stay(stream: Stream) -> None:
    """Read nothing until the server hangs up."""
    reader, writer = stream
    try:
        while not writer.is_closing() and not reader.at_eof():
            await asyncio.sleep(PAUSE_S)
    finally:
        writer.transport.abort()


async def drain(stream: Stream) -> None:
    """Read all until the server hangs up."""
    reader, writer = stream
    try:
        while await reader.read(BLOCK):
            pass
    finally:
        writer.transport.abort()


async def pour(stream: Stream, block: bytes) -> None:
    """Send the same again and again, and read nothing, until the server hangs up."""
    _, writer = stream
    try:
        while not writer.is_closing():
            writer.write(block)
            await writer.drain()
    finally:
        writer.transport.abort()


# ---- text


async def _say(target: Target, *messages: bytes) -> None:
    """One utterance on a connection of its own, heard to its end."""
    reader, writer = await target.websocket()
    try:
        writer.write(b"".join((message(type="open", id="a"), *messages, message(type="finish", id="a"))))
        end = b""
        while b'"type":"done"' not in end and b'"type":"error"' not in end:
            part = await reader.read(BLOCK)
            if not part:
                return
            end = end[-64:] + part
    finally:
        writer.transport.abort()


@attack()
async def dots(target: Target) -> None:
    """Say a word and 19,900 dots, in one message."""
    await again(2, lambda: _say(target, message(type="text", id="a", text="Hello." + "." * 19_900)))


@attack()
async def dot_by_dot(target: Target) -> None:
    """Say 1,500 messages of one dot."""
    await again(2, lambda: _say(target, *[message(type="text", id="a", text=".")] * 1_500))


@attack()
async def marks(target: Target) -> None:
    """Ask for 20,000 combining marks or joiners over HTTP, 24 times at once."""
    numbers = itertools.count()

    async def once() -> None:
        letter = ("\u0301", "\u200d")[next(numbers) % 2]
        body = {"input": "a" + letter * 19_999, "response_format": "pcm"}
        await drain(await target.connect(target.request(SPEECH, body, "connection: close")))

    await again(24, once)


@attack()
async def keys(target: Target) -> None:
    """Send 90,000 unknown JSON keys, four times at once."""
    body = {"input": "Hello."} | {f"k{number}": 0 for number in range(90_000)}
    request = target.request(SPEECH, body, "connection: close")

    async def once() -> None:
        await drain(await target.connect(request))

    await again(4, once)


# ---- before a key is looked at


@attack()
async def unread_answers(target: Target) -> None:
    """Ask for twelve files on each of 40 connections, and read nothing."""
    request = target.head(f"GET {ASSET} HTTP/1.1") + b"\r\n"

    async def once() -> None:
        await stay(await target.connect(request * 12, receives=SMALL))

    await again(40, once)


@attack()
async def handshakes(target: Target) -> None:
    """Begin WebSockets in ways that cannot be read, on 100 connections, and stay."""
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    kinds = itertools.cycle(
        [
            target.head("POST /v1/speak HTTP/1.1", *upgrade, key, "content-length: 5") + b"\r\n12345",
            target.head("GET /v1/speak HTTP/1.1", *upgrade, key, *["a: b"] * 130) + b"\r\n",
            target.head("GET /v1/speak HTTP/1.1", *upgrade, key, f"a: {'b' * 9_000}") + b"\r\n",
            target.head("GET /v1/speak HTTP/1.1", *upgrade) + b"\r\n",
        ]
    )

    async def once() -> None:
        await stay(await target.connect(next(kinds)))

    await again(100, once)


@attack()
async def headers(target: Target) -> None:
    """Send headers without end on eight connections."""

    async def once() -> None:
        await pour(await target.connect(target.head("GET / HTTP/1.1")), f"a: {'b' * 8_000}\r\n".encode() * 8)

    await again(8, once)


@attack()
async def addresses(target: Target) -> None:
    """Send addresses without end on eight connections."""

    async def once() -> None:
        await pour(await target.connect(b"GET /"), b"a" * BLOCK)

    await again(8, once)


@attack()
async def chunks(target: Target) -> None:
    """Send a body in chunks of one byte on eight connections."""
    head = target.head(f"POST {SPEECH} HTTP/1.1", "content-type: application/json", "transfer-encoding: chunked")

    async def once() -> None:
        await pour(await target.connect(head + b"\r\n"), b"1\r\nx\r\n" * 10_000)

    await again(8, once)


@attack()
async def pipelines(target: Target) -> None:
    """Ask again and again behind an answer that is not read, on eight connections."""
    request = target.head("GET /live HTTP/1.1") + b"\r\n"

    async def once() -> None:
        await pour(await target.connect(receives=SMALL), request * 200)

    await again(8, once)


@attack()
async def slow_bodies(target: Target) -> None:
    """Send a byte of a body each second, on 200 connections."""
    head = target.head(f"POST {SPEECH} HTTP/1.1", "content-type: application/json", "content-length: 10000")

    async def once() -> None:
        _, writer = await target.connect(head + b"\r\n")
        try:
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(1.0)
        finally:
            writer.transport.abort()

    await again(200, once)


@attack()
async def silence(target: Target) -> None:
    """Connect 1,200 times, and send nothing."""

    async def once() -> None:
        await drain(await target.connect())

    await again(1_200, once)


# ---- frames


async def _pour_frames(target: Target, first: bytes, block: bytes) -> None:
    async def once() -> None:
        stream = await target.websocket(receives=SMALL)
        stream[1].write(first)
        await pour(stream, block)

    await again(8, once)


@attack()
async def pings(target: Target) -> None:
    """Send pings without end on eight WebSockets, and read nothing."""
    await _pour_frames(target, b"", frame(PING, b"x" * 125) * 500)


@attack()
async def fragments(target: Target) -> None:
    """Send parts of a message without a byte, without end, on eight WebSockets."""
    await _pour_frames(target, frame(TEXT, last=False), frame(PART, last=False) * 10_000)


@attack()
async def nonsense(target: Target) -> None:
    """Feed utterances that are not open, without end, on eight WebSockets, and read nothing."""
    await _pour_frames(target, b"", message(type="text", id="nobody", text=".") * 1_000)


# ---- shares


@attack()
async def opens(target: Target) -> None:
    """Open 32 utterances without text on each of 33 WebSockets."""
    opened = b"".join(message(type="open", id=str(number)) for number in range(32))

    async def once() -> None:
        stream = await target.websocket()
        stream[1].write(opened)
        await drain(stream)

    await again(33, once)


@attack()
async def sockets(target: Target) -> None:
    """Open 1,000 WebSockets, and do nothing with them."""

    async def once() -> None:
        await drain(await target.websocket())

    await again(1_000, once)


@attack()
async def words(target: Target) -> None:
    """Open 100 utterances, give each three words, and leave them open."""
    opened = b"".join(
        message(type="open", id=str(number)) + message(type="text", id=str(number), text="It is ten ")
        for number in range(25)
    )

    async def once() -> None:
        stream = await target.websocket(receives=SMALL)
        stream[1].write(opened)
        await stay(stream)

    await again(4, once)


@attack()
async def readers(target: Target) -> None:
    """Ask for 16 long texts; read eight at 2 kB/s, and the others not at all."""
    request = target.request(SPEECH, {"input": LONG, "response_format": "pcm"})

    async def slowly() -> None:
        reader, writer = await target.connect(request, receives=SMALL)
        try:
            while await reader.read(200):
                await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()

    async def never() -> None:
        await stay(await target.connect(request, receives=SMALL))

    await asyncio.gather(again(8, slowly), again(8, never))


async def _long(target: Target, *more: str) -> None:
    body = {"input": LONG, "response_format": "pcm"}
    await drain(await target.connect(target.request(SPEECH, body, "connection: close", *more)))


@attack(anonymous=True)
async def eight(target: Target) -> None:
    """Ask for eight long texts at once, from one address without a key."""
    await again(8, lambda: _long(target))


@attack(anonymous=True)
async def forged(target: Target) -> None:
    """Ask for 24 long texts at once, each with another forged ``X-Forwarded-For``."""
    numbers = itertools.count()
    await again(24, lambda: _long(target, f"x-forwarded-for: 10.0.{next(numbers) % 250}.1"))


def main() -> None:
    """Run one attack until the process is ended: its name, the server's address, and the key if there is one."""
    name, url, *key = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(name, Target(url, key[0] if key else None)))


async def _run(name: str, target: Target) -> None:
    await ATTACKS[name].run(target)


if __name__ == "__main__":
    main()

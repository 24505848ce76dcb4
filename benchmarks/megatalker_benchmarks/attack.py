"""One key against another's first chunk, on a server process: ``megatalker bench attack --help``.

The attacker opens 100 utterances, gives each a few words, reads nothing and leaves them open; and asks for long
speech over HTTP that it reads at 2 kB/s, or not at all. Meanwhile the other key makes requests at random moments.
Phases without and with the attacker alternate, so that whatever else the machine does falls on both. The command fails
where the other key's p95 grew by more than half, or any of its requests failed.
"""

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr
from websockets.asyncio.client import connect

from megatalker.cli.load.drive import TEXTS, Heard, Script, drive, listening_to
from megatalker.cli.load.remote import Servers
from megatalker.cli.load.report import Case, percentiles_ms
from megatalker.cli.load.traffic import Traffic
from megatalker.serving.protocol.messages import Open, Text
from megatalker.serving.server.keyring import hash_key, new_key
from megatalker_benchmarks.callers import counts
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_benchmarks.serve_process import serve_process

IDLE = 100
"""Utterances that are opened and left."""
IDLE_A_CONNECTION = 25
FEW_WORDS = "It is ten "
BYTES_A_READ, READ_EVERY_S, FOR_EVER_S = 200, 0.1, 1e6
LONG = " ".join(TEXTS) * 3
MOST_GROWTH = 1.5
"""Of the other key's p95."""
SETTLED_S = 60.0


@asynccontextmanager
async def attacked(url: str, key: str, slow: int, unread: int) -> AsyncIterator[None]:
    """Meanwhile everything is open that the attacker opens."""
    async with AsyncExitStack() as stack:
        for first in range(0, IDLE, IDLE_A_CONNECTION):
            await stack.enter_async_context(_idle(url, key, range(first, min(IDLE, first + IDLE_A_CONNECTION))))
        pauses = [READ_EVERY_S] * slow + [FOR_EVER_S] * unread
        readers = [asyncio.create_task(_read(url, key, pause_s)) for pause_s in pauses]
        try:
            yield
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


@asynccontextmanager
async def _idle(url: str, key: str, numbers: range) -> AsyncIterator[None]:
    headers = {"Authorization": f"Bearer {key}"}
    endpoint = url.replace("http", "ws", 1) + "/v1/speak"
    async with connect(endpoint, additional_headers=headers, compression=None, max_queue=1, close_timeout=0) as socket_:
        for number in numbers:
            await socket_.send(Open(id=str(number)).model_dump_json())
            await socket_.send(Text(id=str(number), text=FEW_WORDS).model_dump_json())
        yield
        socket_.transport.abort()


async def _read(url: str, key: str, pause_s: float) -> None:
    """Ask for a long text, and read a little of its speech after each pause."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((address.hostname, address.port))
    body = json.dumps({"input": LONG, "response_format": "pcm"}).encode()
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(sock=connection, limit=BYTES_A_READ)
    try:
        writer.write(head.encode() + body)
        while await reader.read(BYTES_A_READ):
            await asyncio.sleep(pause_s)
    finally:
        writer.transport.abort()


async def run(
    url: str, keys: dict[str, str], rounds: int, seconds: float, traffic: Traffic, slow: int, unread: int
) -> dict[str, Any]:
    """All phases; ``growth`` in the result is that of the p95 of all phases of a kind together, null where a
    phase was silent.
    """
    phases: dict[str, list[Heard]] = {"calm": [], "attack": []}
    script, held = Script(length_s=2.0), []
    with Servers([url], 1, SecretStr(keys["caller"])) as servers:
        listen = listening_to(servers)

        async def phase() -> Heard:
            return await drive(listen, traffic, script, seconds)

        await drive(listen, traffic, script, min(5.0, seconds))
        for _ in range(rounds):
            phases["calm"].append(await phase())
            async with attacked(url, keys["attacker"], slow, unread):
                phases["attack"].append(await phase())
                held.append(await _open(url))
            await _quiet(url)
    found: dict[str, Any] = {}
    for name, heards in phases.items():
        cases = [Case.of(heard, None) for heard in heards]
        players = [player for heard in heards for player in heard.players]
        found[name] = {
            "heard": sum(case.heard for case in cases),
            "first_chunk_ms": percentiles_ms([one.first_at - one.requested_at for one in players if one.first_at]),
            "first_chunk_ms_by_phase": [case.first_chunk_ms for case in cases],
            "requests": len(players),
            "errors": [case.errors for case in cases],
            "underruns": sum(case.underruns for case in cases),
        }
    p95 = {name: (found[name]["first_chunk_ms"] or {}).get("p95") for name in phases}
    growth = p95["attack"] / p95["calm"] if all(p95.values()) else None
    return {**found, "open_at_the_end_of_attacks": held, "growth": growth}


async def _open(url: str) -> dict[str, int]:
    now = await counts(url)
    return {what: now[f"megatalker_engine_{what}", "", ""] for what in ("active", "waiting", "idle")}


async def _quiet(url: str) -> None:
    async with asyncio.timeout(SETTLED_S):
        while any((await _open(url)).values()):
            await asyncio.sleep(0.1)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--seconds", type=number(), default=30.0, help="of a phase")
    parser.add_argument(
        "--rate", type=number(), default=1.0, help="requests a second of the other key, 2 s of speech each"
    )
    parser.add_argument(
        "--slow", type=whole(0), default=8, help="readers at 2 kB/s; as many as there are rows by default"
    )
    parser.add_argument("--unread", type=whole(0), default=8, help="readers that read nothing")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    keys = {name: new_key() for name in ("caller", "attacker")}
    settings = "".join(f'[server.keys.{name}]\nhash = "{hash_key(key)}"\n' for name, key in keys.items())
    with serve_process("--checkpoint", options.checkpoint, "--backend", options.backend, settings=settings) as server:
        traffic = Traffic("rate", options.rate)
        found = asyncio.run(
            run(server.url, keys, options.rounds, options.seconds, traffic, options.slow, options.unread)
        )
    hand_out(found, options.json)
    served = found["growth"] is not None and not any(found["attack"]["errors"])
    return 0 if served and found["growth"] <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())

"""Attacks on a server process, and what other callers hear of them.

Each attack runs in a process of its own against a server process, from another address than its victims and, where the
server asks for keys, with a key of its own, as each victim has. Meanwhile one victim asks for "Hello." over HTTP and
another over WebSocket at random moments, each time on a new connection, and a third listens to speech without end.
Phases without and with the attack alternate, so that whatever else the machine does falls on both. The command fails
where the p95 of a first chunk grew by more than half, the listener heard a gap of more than 100 ms that it did not hear
without the attack, a victim was refused, or the server keeps memory or file descriptors.
"""

import argparse
import asyncio
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from megatalker.serving.server.keyring import hash_key, new_key
from megatalker_benchmarks.attacks import ATTACKS
from megatalker_benchmarks.callers import MAX_GROWTH, Watched, settled
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_benchmarks.serve_process import serve_process
from megatalker_benchmarks.victims import VICTIMS, Victims

MOST_SLOWER = 1.5
"""The most that the victims' p95 may grow, as a factor."""
MOST_GAP_MS = 100.0
REACHED_S = 1.0
"""Seconds after which an attack has begun."""
WARM_S = 5.0
LEAST_PRIORITY = 19
"""Niceness of the attacker, which in life has a processor of its own: it gets what server and victims leave."""


@contextmanager
def attacking(name: str, url: str, key: str | None) -> Iterator[None]:
    """Keep the attack going within this context."""
    command = [sys.executable, "-m", "megatalker_benchmarks.attacks", name, url, *([] if key is None else [key])]
    with subprocess.Popen(command) as running:
        psutil.Process(running.pid).nice(LEAST_PRIORITY)
        try:
            yield
            if running.poll() is not None:
                raise RuntimeError(f"the attack {name!r} ended by itself with status {running.returncode}")
        finally:
            running.kill()


async def attacked(
    server: Watched, name: str, keys: dict[str, str], rounds: int, seconds: float, rate: float
) -> dict[str, Any]:
    """Run all phases of one attack; ``wrong`` in the result names what it broke."""
    phases = {"calm": Victims(), "attack": Victims()}
    held_before, memory_before = await settled(server), server.memory_mib()
    most_memory = memory_before
    for _ in range(rounds):
        await phases["calm"].behave(server.url, keys, rate, seconds)
        with attacking(name, server.url, keys.get("attacker")):
            await asyncio.sleep(REACHED_S)
            await phases["attack"].behave(server.url, keys, rate, seconds)
            most_memory = max(most_memory, server.memory_mib())
        held_after = await settled(server, held_before)
    found: dict[str, Any] = {phase: victims.summary() for phase, victims in phases.items()}
    found["slower"] = _slower(found)
    found["memory_mib"] = {"before": memory_before, "attack": most_memory, "after": server.memory_mib()}
    found["held"] = {"before": held_before, "after": held_after}
    return {"about": ATTACKS[name].about, **found, "wrong": wrong(found)}


def wrong(found: dict[str, Any]) -> list[str]:
    """Name the limits that an attack broke."""
    calm, attack, memory, held = found["calm"], found["attack"], found["memory_mib"], found["held"]
    broken = []
    if attack["failed"]:
        broken.append(f"victims failed: {attack['failed']}")
    for route, slower in found["slower"].items():
        if slower is None or slower > MOST_SLOWER:
            grew = "was never heard" if slower is None else f"grew {slower:.2f} times, expected at most {MOST_SLOWER}"
            broken.append(f"{route}: the first chunk's p95 {grew}")
    if attack["gap_ms"] > max(MOST_GAP_MS, calm["gap_ms"]):
        broken.append(f"a gap of {attack['gap_ms']:.0f} ms, expected at most {MOST_GAP_MS:.0f}")
    if memory["after"] > MAX_GROWTH * memory["before"]:
        broken.append(f"memory was {memory['before']:.0f} MiB, is {memory['after']:.0f} MiB")
    broken += [
        f"{what} was {before:g}, is {held['after'][what]:g}"
        for what, before in held["before"].items()
        if held["after"][what] > before
    ]
    return broken


def _slower(found: dict[str, Any]) -> dict[str, float | None]:
    """Return the p95 with the attack divided by that without it; ``None`` where a phase was silent."""
    slower: dict[str, float | None] = {}
    for route in ("http", "websocket"):
        grew = _p95(found["attack"], route) / _p95(found["calm"], route)
        slower[route] = None if math.isnan(grew) else grew
    return slower


def _p95(phase: dict[str, Any], route: str) -> float:
    return float((phase[f"{route}_first_chunk_ms"] or {}).get("p95", math.nan))


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print a table of all attacks."""
    table = Table("attack", "HTTP p95 ms", "WebSocket p95 ms", "gap ms", "failed", "memory MiB", "held", "")
    for name, one in found.items():
        calm, attack, memory = one["calm"], one["attack"], one["memory_mib"]
        routes = [f"{_p95(calm, route):.0f} → {_p95(attack, route):.0f}" for route in ("http", "websocket")]
        held = [f"{one['held'][when]['file_descriptors']:.0f}" for when in ("before", "after")]
        table.add_row(
            name,
            *routes,
            f"{calm['gap_ms']:.0f} → {attack['gap_ms']:.0f}",
            str(sum(attack["failed"].values())),
            f"{memory['before']:.0f} → {memory['attack']:.0f} → {memory['after']:.0f}",
            " → ".join(held),
            "wrong" if one["wrong"] else "ok",
        )
    Console(stderr=True).print(table)


def main() -> int:
    """Command line."""
    kinds = "\n".join(f"  {name:16}{attack.about}" for name, attack in ATTACKS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nattacks:\n{kinds}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="by default all")
    parser.add_argument("--rounds", type=whole(), default=1)
    parser.add_argument("--seconds", type=number(), default=20.0, help="of a phase")
    parser.add_argument("--rate", type=number(), default=1.0, help="requests a second of the victims, on each route")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    unknown = [name for name in options.attacks if name not in ATTACKS]
    if unknown:
        parser.error(f"no attack {', '.join(map(repr, unknown))}; expected some of {', '.join(ATTACKS)}")
    names = options.attacks or list(ATTACKS)
    found: dict[str, dict[str, Any]] = {}
    for anonymous in (False, True):
        chosen = [name for name in names if ATTACKS[name].anonymous == anonymous]
        keys = {} if anonymous else {name: new_key() for name in (*VICTIMS, "attacker")}
        settings = "".join(f'[server.keys.{name}]\nhash = "{hash_key(key)}"\n' for name, key in keys.items())
        with ExitStack() as stack:
            if chosen:
                command = ("--checkpoint", options.checkpoint, "--backend", options.backend)
                server = stack.enter_context(serve_process(*command, settings=settings))
                asyncio.run(Victims().behave(server.url, keys, options.rate, min(WARM_S, options.seconds)))
            for name in chosen:
                run = attacked(server, name, keys, options.rounds, options.seconds, options.rate)
                found[name] = asyncio.run(run)
                sys.stderr.write(f"{name}: {'; '.join(found[name]['wrong']) or 'ok'}\n")
    show(found)
    hand_out({"attacks": found}, options.json)
    return 1 if any(one["wrong"] for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

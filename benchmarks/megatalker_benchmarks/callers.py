"""Twenty callers at once, some of whom are rude, on a server process: ``megatalker bench callers --help``.

They listen, feed text, cancel, hang up, read slowly and send nonsense at random; two requests a minute are poisoned.
None may disturb another: every utterance has the codes of the same utterance alone, and its 16-bit samples to within
one step (batches of other sizes round otherwise). Afterwards the server holds what it held before, and its counts agree
with those of the callers.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from megatalker.cli.bench.drive import TEXTS
from megatalker_benchmarks.caller import POISON, ROUTES, SILENCE_S, HeardSpeech, RudeCaller, Tally
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_benchmarks.serve_process import serve_process

SETTLE_S = 30.0
"""Seconds after the last caller until what the server still holds is a leak."""
POISON_EVERY_S = 30.0
LOOK_EVERY_S = 5.0
MAX_GROWTH = 1.1
"""The most that memory may grow between the first and the last third of the time, as a factor."""
GAUGES = ("engine_active", "engine_waiting", "engine_idle", "connections")

Counts = Counter[tuple[str, str, str]]
"""Counts by metric, route and reason of the end, where the metric has them."""


class Watched(Protocol):
    """A server whose tasks, descriptors and memory can be read."""

    @property
    def url(self) -> str: ...
    def tasks(self) -> int: ...
    def descriptors(self) -> int: ...
    def memory_mib(self) -> float: ...


async def counts(url: str) -> Counts:
    """Read the server's metrics."""
    async with httpx.AsyncClient(timeout=SILENCE_S) as client:
        text = (await client.get(url + "/metrics")).text
    found: Counts = Counter()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            found[name, labels.get("route", ""), labels.get("finish_reason", "")] += int(
                value
            )  # bounds of buckets and sums of seconds, which are not, are not looked at
    return found


def held(server: Watched, now: Counts) -> dict[str, float]:
    """Return what should be as before once all callers are gone."""
    found = {name: now[f"megatalker_{name}", "", ""] for name in GAUGES}
    return found | {"tasks": server.tasks(), "file_descriptors": server.descriptors()}


async def settled(server: Watched, before: dict[str, float] | None = None) -> dict[str, float]:
    """Return what is held once it is stable and no more than before, or after a deadline."""
    deadline, last = time.monotonic() + SETTLE_S, {"": -1.0}
    while True:
        now = held(server, await counts(server.url))
        if time.monotonic() > deadline or (now == last and not _more(now, before or dict.fromkeys(GAUGES, 0.0))):
            return now
        last = now
        await asyncio.sleep(0.2)


def _more(now: dict[str, float], before: dict[str, float]) -> list[str]:
    return [f"{name} was {before[name]:g}, is {now[name]:g}" for name in before if now[name] > before[name]]


async def crowd(server: Watched, caller: RudeCaller, callers: int, seconds: float, seed: int) -> list[float]:
    """Run all callers for ``seconds``; return samples of the server's memory in MiB."""
    until = time.monotonic() + seconds
    memory = []

    async def look() -> None:
        while True:
            memory.append(server.memory_mib())
            await asyncio.sleep(min(LOOK_EVERY_S, seconds / 6))

    async def poison() -> None:
        for index in range(round(seconds / POISON_EVERY_S) or 1):
            await asyncio.sleep(min(POISON_EVERY_S, seconds) / 2 if index == 0 else POISON_EVERY_S)
            await caller.poison(POISON[index % len(POISON)])

    looking = asyncio.create_task(look())
    calls = [caller.call(random.Random(f"{seed} {number}"), until) for number in range(callers)]
    await asyncio.gather(poison(), *calls)
    looking.cancel()
    return memory


def disagreements(tally: Tally, before: Counts, after: Counts) -> list[str]:
    """Name counts in which server and callers differ. Only the server knows how an unheard utterance ended."""
    added, wrong = Counter(after), []
    added.subtract(before)
    for route in ROUTES:
        ended = {why: n for (name, by, why), n in added.items() if (name, by) == ("megatalker_utterances_total", route)}
        heard = {why: n for (by, why), n in tally.ends.items() if by == route}
        unheard, refused = tally.vanished[route], added["megatalker_refusals_total", route, ""]
        if sum(ended.values()) != sum(heard.values()) + unheard or any(ended.get(why, 0) < heard[why] for why in heard):
            wrong.append(f"{route}: the server counted {ended}; callers heard {heard}, and {unheard} went unheard")
        if ended.get("error"):
            wrong.append(f"{route}: {ended['error']} utterances failed")
        if refused != tally.refused[route]:
            wrong.append(f"{route}: the server counted {refused} refusals; callers {tally.refused[route]}")
    begun, streams = tally.ends.total() + tally.vanished.total(), added["megatalker_engine_streams_total", "", ""]
    if streams != begun:
        wrong.append(f"the engine counted {streams} streams; callers {begun}")
    return wrong


async def run(server: Watched, callers: int, seconds: float, texts: Sequence[str], max_frames: int) -> dict[str, Any]:
    """Run everything; ``wrong`` in the result names every fault."""
    alone: dict[tuple[int, bool], HeardSpeech] = {}
    await RudeCaller(server.url, texts, max_frames, Tally(), alone).rehearse()
    # buffers and threads of a server that was busy once
    await crowd(server, RudeCaller(server.url, texts, max_frames, Tally(), alone), callers, seconds / 10, seed=0)
    at_rest = await settled(server)
    before, tally = await counts(server.url), Tally()
    memory = await crowd(server, RudeCaller(server.url, texts, max_frames, tally, alone), callers, seconds, seed=1)
    now = await settled(server, at_rest)
    wrong = tally.disturbed + disagreements(tally, before, await counts(server.url))
    wrong += _more(now, at_rest)
    third = max(1, len(memory) // 3)
    if statistics.median(memory[-third:]) > MAX_GROWTH * statistics.median(memory[:third]):
        wrong.append(f"memory grew: {memory} MiB")
    return {
        "callers": callers,
        "seconds": seconds,
        **tally.summary(),
        "held_before": at_rest,
        "held_after": now,
        "memory_mib": memory,
        "wrong": wrong,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=whole(), default=20)
    parser.add_argument("--seconds", type=number(), default=180.0)
    parser.add_argument("--max-frames", type=whole(), default=120, help="of an utterance")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    asked = ("--checkpoint", options.checkpoint, "--backend", options.backend)
    with serve_process(*asked, environment={"MEGATALKER_SHORT_SPEECH": "believe"}) as server:
        found = asyncio.run(run(server, options.callers, options.seconds, TEXTS, options.max_frames))
    hand_out(found, options.json)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

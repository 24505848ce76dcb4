"""Listeners that hear, cancel and dawdle, for any length of time: ``megatalker bench soak --help``.

A number of places is always taken. Each listener has a text spoken, paced by playback, and hears it to its end, cancels
it somewhere, or takes its audio at half that pace. The codes of each utterance must be those that its text has alone,
and nothing may stay occupied; the growth of memory is reported.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
import torch

from megatalker import BackendRegistry, Checkpoint, Engine, Settings
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.playback import Playback, summary
from megatalker.cli.bench.report import environment_of_engine
from megatalker.engine import EngineMetrics
from megatalker.engine.interpreter import spare_what_is_loaded, switch_threads_often
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.errors import CapacityError, MegatalkerError
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole

TEXTS = 64
"""The most different texts: two for each place, so that a short run has few to learn first."""
AHEAD_S = 2.0
COMING_S = 5.0
"""Seconds over which the starts of the first listeners are spread."""
PAUSE_S = 0.2
"""Seconds, on average, until a place is taken again."""
SAMPLES = 40
"""How often memory is measured."""
SETTLE_S = 10.0
"""Seconds after the last stream until what is still occupied is a fault."""
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "small", "boats", "that", "sail", "home", "before", "dark")
Manner = Literal["hears", "cancels", "dawdles"]
MANNERS: tuple[Manner, ...] = ("hears", "hears", "cancels", "dawdles")
Codes = list[list[int]]


@dataclass(slots=True)
class SoakResult:
    """Outcome of all utterances."""

    manners: Counter[Manner] = field(default_factory=Counter)
    differ: int = 0
    refused: int = 0
    """Requests that came at a bad time; their listeners came back when they were told to."""
    errors: Counter[str] = field(default_factory=Counter)
    playbacks: list[Playback] = field(default_factory=list)
    """Utterances that were heard in full at the pace of playback."""


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """MiB, in equal steps of time."""

    process: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)

    def observe(self) -> None:
        self.process.append(psutil.Process().memory_info().rss / 2**20)
        if torch.cuda.is_available():
            self.device.append(torch.cuda.memory_allocated() / 2**20)


def text_of(index: int) -> str:
    """Return a sentence of 2 to 9 words, a different one for each number."""
    return " ".join(random.Random(index).choices(WORDS, k=2 + index % 8)) + "."


async def speak(
    engine: SpeechEngine,
    index: int,
    frames: int,
    player: Playback,
    *,
    ahead_s: float | None = AHEAD_S,
    leave_at: int | None = None,
    pace: float = 0.0,
) -> Codes:
    """Return the codes of one text, or of its beginning; ``pace``: the wait after a chunk, in its own durations."""
    codes: Codes = []
    most = 1 + frames * (1 + index % 4) // 4
    async with engine.speak(
        text_of(index), seed=index, max_frames=most, max_ahead_s=ahead_s, return_codes=True
    ) as stream:
        async for chunk in stream:
            assert chunk.codes is not None
            player.take(chunk.pcm, time.monotonic())
            codes += chunk.codes.tolist()
            if leave_at is not None and len(codes) >= leave_at:
                break
            await asyncio.sleep(pace * chunk.frames * FRAME_SECONDS)
    return codes


async def codes_alone(engine: SpeechEngine, streams: int, frames: int) -> dict[int, Codes]:
    """Return the codes that each text has alone, by its number."""
    texts = range(min(TEXTS, 2 * streams))
    return {index: await speak(engine, index, frames, Playback(0.0), ahead_s=None) for index in texts}


async def one_place(
    engine: SpeechEngine, number: int, frames: int, alone: dict[int, Codes], until: float, found: SoakResult
) -> None:
    """Run listeners one after another in one place."""
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, COMING_S))
    while time.monotonic() < until:
        index, manner = chance.randrange(len(alone)), chance.choice(MANNERS)
        leave_at = chance.randrange(1, 1 + len(alone[index])) if manner == "cancels" else None
        player, pace = Playback(time.monotonic()), 2.0 if manner == "dawdles" else 0.0
        try:
            codes = await speak(engine, index, frames, player, leave_at=leave_at, pace=pace)
        except CapacityError as error:
            found.refused += 1
            await asyncio.sleep(error.retry_after_s or PAUSE_S)
        except MegatalkerError as error:
            found.errors[type(error).__name__] += 1
        else:
            found.manners[manner] += 1
            found.differ += codes != alone[index][: len(codes)] or (leave_at is None and codes != alone[index])
            if manner == "hears":
                found.playbacks.append(player)
        await asyncio.sleep(chance.expovariate(1 / PAUSE_S))


async def measure(seconds: float, memory: MemoryLog) -> None:
    for _ in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        memory.observe()


async def settled(engine: Engine) -> EngineMetrics:
    """Return counters once nothing is occupied: a cancelled stream holds its slot until the step in progress ends."""
    deadline = time.monotonic() + SETTLE_S
    while (metrics := engine.metrics()).active + metrics.waiting and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return metrics


async def run(engine: Engine, streams: int, seconds: float, frames: int) -> dict[str, object]:
    """Return what was found."""
    alone = await codes_alone(engine, streams, frames)
    found, memory, before = SoakResult(), MemoryLog(), engine.metrics()
    until = time.monotonic() + seconds
    places = (one_place(engine, number, frames, alone, until, found) for number in range(streams))
    await asyncio.gather(measure(seconds, memory), *places)
    metrics, heard = await settled(engine), summary(found.playbacks)
    return {
        "environment": environment_of_engine(engine),
        "streams": streams,
        "seconds": seconds,
        "spoken": dict(found.manners),
        "codes_that_differ": found.differ,
        "refused": found.refused,
        "errors": dict(found.errors),
        **{name: heard[name] for name in ("first_chunk_ms", "listeners_with_underruns", "worst_gap_ms")},
        "still_active": metrics.active,
        "still_waiting": metrics.waiting,
        "memory_mib": memory.process,
        "device_memory_mib": memory.device,
        "engine": {
            "frames": metrics.frames - before.frames,
            "host_s": metrics.host_s - before.host_s,
            "backend_s": metrics.backend_s - before.backend_s,
            "switches": metrics.switches,
        },
    }


def parser_of(about: str | None, *, seconds: float, frames: int) -> argparse.ArgumentParser:
    """Return a command line of listeners in places, with these defaults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--streams", type=whole(), default=50)
    parser.add_argument("--seconds", type=number(), default=seconds, help="of each run")
    parser.add_argument(
        "--frames", type=whole(), default=frames, help="of the longest texts; others have a quarter at least"
    )
    parser.add_argument("--checkpoint", help="by default a tiny one of random weights")
    parser.add_argument("--backend", default="compiled")
    add_json_option(parser)
    return parser


@contextmanager
def checkpoint_and_settings(options: argparse.Namespace, device: str) -> Iterator[tuple[Checkpoint, Settings]]:
    """The checkpoint of a command line of :func:`parser_of`, and settings with a slot for each place."""
    made = tempfile.TemporaryDirectory() if options.checkpoint is None else nullcontext()
    with made as folder:
        path = options.checkpoint if folder is None else write_checkpoint(Path(folder) / "tiny", TINY)
        room = {"max_streams": options.streams, "max_waiting": options.streams, "short_speech": "believe"}
        yield Checkpoint.open(path), Settings.read(backend=options.backend, fallbacks=(), device=device, **room)


def main() -> None:
    """Command line."""
    parser = parser_of(__doc__, seconds=120.0, frames=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--warmup", action="store_true")
    options = parser.parse_args()
    with (
        checkpoint_and_settings(options, options.device) as (checkpoint, settings),
        Engine.open(settings, checkpoint=checkpoint, registry=BackendRegistry.installed()) as engine,
    ):
        if options.warmup:
            engine.warmup()
        spare_what_is_loaded()
        switch_threads_often()
        report = asyncio.run(run(engine, options.streams, options.seconds, options.frames))
    hand_out(report, options.json)
    faults = "codes_that_differ", "refused", "errors", "still_active", "still_waiting"
    broken = [name for name in faults if report[name]]
    if broken:
        sys.exit(f"not as it should be: {', '.join(broken)}; expected none")


if __name__ == "__main__":
    main()

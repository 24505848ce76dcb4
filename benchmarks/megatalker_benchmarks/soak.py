"""Opens 50 streams at once, cancels half of them at random frames, and again: ``megatalker bench soak --help``.

Checks that every survivor speaks the codes of its solo run, that nothing stays occupied, and how memory grows.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from megatalker import BackendRegistry, Checkpoint, Engine, Settings
from megatalker.engine import EngineMetrics
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_benchmarks.report import add_json_option, hand_out

STREAMS = 50
SETTLE_S = 10.0
"""What is occupied for longer after the last stream has ended stays so."""
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "seven",
    "small",
    "boats",
    "that",
    "sail",
    "home",
    "before",
    "dark",
]


def text_of(index: int) -> str:
    """A sentence of 2 to 9 words, a different one for each stream."""
    return " ".join(random.Random(index).choices(WORDS, k=2 + index % 8)) + "."


def listen(engine: Engine, index: int, cancel_at: int | None, heard: dict[int, list[list[int]]], frames: int) -> None:
    """Speak one text to its end, or cancel it after some frames."""
    codes: list[list[int]] = []
    stream = engine.speak(text_of(index), seed=index, max_frames=frames, return_codes=True)
    for chunk in stream:
        assert chunk.codes is not None
        codes += chunk.codes.tolist()
        if cancel_at is not None and len(codes) >= cancel_at:
            stream.cancel()
    if cancel_at is None:
        heard[index] = codes


def settled(engine: Engine) -> EngineMetrics:
    """Counters once nothing is occupied: a stream that was cancelled holds its row until the step in progress ends."""
    deadline = time.monotonic() + SETTLE_S
    while (metrics := engine.metrics()).active + metrics.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    return metrics


def run(engine: Engine, rounds: int, frames: int) -> dict[str, object]:
    """All rounds; returns what was found."""
    alone: dict[int, list[list[int]]] = {}
    for index in range(STREAMS):
        listen(engine, index, None, alone, frames)
    chance = random.Random(0)
    memory, mismatches = [], 0
    began = time.monotonic()
    for _ in range(rounds):
        cancelled = set(chance.sample(range(STREAMS), STREAMS // 2))
        heard: dict[int, list[list[int]]] = {}
        threads = [
            threading.Thread(
                target=listen,
                args=(engine, index, chance.randrange(1, frames) if index in cancelled else None, heard, frames),
            )
            for index in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mismatches += sum(heard.get(index) != alone[index] for index in set(range(STREAMS)) - cancelled)
        memory.append(psutil.Process().memory_info().rss / 2**20)
    metrics = settled(engine)
    return {
        "rounds": rounds,
        "streams": STREAMS,
        "seconds": time.monotonic() - began,
        "survivors_that_differ": mismatches,
        "still_active": metrics.active,
        "still_waiting": metrics.waiting,
        "memory_mib": memory,
        "engine": {"backend": metrics.backend, "codec": metrics.codec, "cancelled": metrics.cancelled},
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--warmup", action="store_true")
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder) / "tiny", TINY))
        settings = Settings.read(backend=options.backend, fallbacks=(), max_waiting=STREAMS)
        with Engine.open(settings, checkpoint=checkpoint, registry=BackendRegistry.installed()) as engine:
            if options.warmup:
                engine.warmup()
            report = run(engine, options.rounds, options.frames)
    hand_out(report, options.json)
    broken = [name for name in ("survivors_that_differ", "still_active", "still_waiting") if report[name]]
    if broken:
        sys.exit(f"not as it should be: {', '.join(broken)}; expected 0")


if __name__ == "__main__":
    main()

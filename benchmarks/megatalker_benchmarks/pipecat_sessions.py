"""Measures the Pipecat service: text in to first audio out, interruption, event-loop lag with many sessions at once.

megatalker bench pipecat --backend compiled --checkpoint demo --json benchmarks/results/cpu/pipecat.json

Milliseconds throughout. Sentence mode and token mode are compared with a simulated language model; interruptions are
measured alone, on a busy event loop, and while other sessions speak.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import numpy as np
from loguru import logger
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Engine, Settings
from megatalker.cli.bench.playback import Playback
from megatalker_benchmarks.pipecat_rig import LoopWatch, Session, busy_loop, environment, sessions
from megatalker_benchmarks.report import add_json_option, hand_out, number, whole
from megatalker_pipecat import MegatalkerTTSService

SHORT = "Good morning, how can I help you today?"
LONG = (
    "The quick brown fox jumps over the lazy dog, and then it takes a long rest in the warm afternoon sun. "
    "When it wakes up, the dog has gone home, and nobody is left in the garden but a cat and two small birds."
)
SENTENCE, TOKEN = TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN
BUSY = (0.001, 0.002)
"""Seconds of other work on the event loop, and seconds of rest."""


def summary(values: list[float]) -> dict[str, float]:
    """Summarise milliseconds."""
    parts = np.quantile(values, (0.9, 0.99, 1.0), method="inverted_cdf").round(3).tolist()
    return {
        "median": round(statistics.median(values), 3),
        **dict(zip(("p90", "p99", "max"), parts, strict=True)),
        "samples": len(values),
    }


async def first_audio(session: Session, rounds: int, ask: Callable[[], Any]) -> dict[str, float]:
    """Time from the first text frame in to the first audio frame out."""
    times = []
    for _ in range(rounds):
        await ask()
        await session.first_audio.wait()
        times.append(session.playback.first_chunk_s * 1e3)
        await session.stopped.wait()
    return summary(times[1:])  # the first round warms up


async def latency(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Measure speak frames and simulated answers, in both modes."""
    found: dict[str, Any] = {}
    for mode in (SENTENCE, TOKEN):
        async with sessions(settings, mode, 1, options.rate) as (session,):
            found[f"speak_{mode}"] = await first_audio(session, options.rounds, lambda: session.speak(SHORT))
            found[f"answer_{mode}"] = await first_audio(
                session, options.rounds, lambda: session.answer(LONG, options.tokens_per_second)
            )
    return found


async def interruption(
    options: argparse.Namespace,
    settings: Settings,
    engine: Engine,
    beside: int,
    around: AbstractAsyncContextManager[None],
) -> dict[str, Any]:
    """Interrupt one session amid speech, again and again, while ``beside`` other sessions speak."""
    times, release_times, frames_after, stale = [], [], [], 0
    async with sessions(settings, SENTENCE, 1 + beside, options.rate) as (session, *others), around:
        talk = [asyncio.create_task(_keep_talking(other)) for other in others]
        for number in range(options.rounds * 4):
            await session.speak(LONG)
            await session.first_audio.wait()
            await asyncio.sleep(0.02 + 0.01 * (number % 8))
            times.append(await session.interrupt() * 1e3)
            made, began = engine.metrics().frames, time.monotonic()
            if not others:
                while engine.metrics().active:
                    await asyncio.sleep(0.0005)  # not 0: a spinning loop would keep the engine's thread waiting
                release_times.append((time.monotonic() - began) * 1e3)
                frames_after.append(engine.metrics().frames - made)
            await asyncio.sleep(0.05)
            stale += session.stale
        for task in talk:
            task.cancel()
        await asyncio.gather(*talk, return_exceptions=True)
    found: dict[str, Any] = {"downstream": summary(times), "stale_audio_frames": stale}
    if release_times:
        found |= {"engine_rows_free": summary(release_times), "frames_made_after": max(frames_after)}
    return found


async def _keep_talking(session: Session) -> None:
    while True:
        await session.speak(LONG)
        await session.stopped.wait()


async def together(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Let all sessions answer at once: the loop's lag, first audio of each, gaps, and the rate of speech."""
    async with LoopWatch() as idle:
        await asyncio.sleep(2.0)
    found: dict[str, Any] = {"loop_lag_of_the_idle_machine": summary([lag * 1e3 for lag in idle.lags])}
    for mode in (SENTENCE, TOKEN):
        async with sessions(settings, mode, options.sessions, options.rate) as all_of_them, LoopWatch() as watch:
            walls = []
            heard: list[Playback] = []
            for _ in range(max(2, options.rounds // 4)):
                start = time.monotonic()
                await asyncio.gather(*(s.answer(LONG, options.tokens_per_second) for s in all_of_them))
                await asyncio.gather(*(session.stopped.wait() for session in all_of_them))
                walls.append(time.monotonic() - start)
                heard += [session.playback for session in all_of_them]
            found[str(mode)] = {
                "loop_lag": summary([lag * 1e3 for lag in watch.lags]),
                "first_audio": summary([one.first_chunk_s * 1e3 for one in heard]),
                "gaps": {
                    "count": sum(one.underruns for one in heard),
                    "longest_ms": round(max(one.worst_gap_s for one in heard) * 1e3, 3),
                },
                "seconds_of_audio_per_second": round(sum(one.audio_s for one in heard) / sum(walls), 2),
            }
    return found


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything on one engine."""
    asked = {name: getattr(options, name) for name in ("checkpoint", "backend", "device") if getattr(options, name)}
    settings = Settings.read(**asked, fallbacks=(), max_streams=max(8, options.sessions))
    async with await MegatalkerTTSService.preload(settings) as lease:
        engine = lease.engine
        assert isinstance(engine, Engine), "a preloaded engine is one of this process"
        for _ in range(2):  # what no warm-up reaches
            await asyncio.to_thread(engine.speak(LONG).read_all)
        return {
            "environment": environment(engine),
            "rounds": options.rounds,
            "first_audio": await latency(options, settings),
            "interruption": {
                "alone": await interruption(options, settings, engine, 0, nullcontext()),
                "busy_loop": await interruption(options, settings, engine, 0, busy_loop(*BUSY)),
                f"beside_{options.sessions - 1}": await interruption(
                    options, settings, engine, options.sessions - 1, nullcontext()
                ),
            },
            f"{options.sessions}_sessions": await together(options, settings),
        }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="talker backend; by default the best available")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default CUDA where there is one")
    parser.add_argument("--sessions", type=whole(), default=8)
    parser.add_argument("--rounds", type=whole(), default=12)
    parser.add_argument("--tokens-per-second", type=number(), default=50.0, help="of the simulated language model")
    parser.add_argument("--rate", type=whole(), default=24_000, help="sample rate of the pipeline")
    add_json_option(parser)
    options = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    hand_out(asyncio.run(measure(options)), options.json)


if __name__ == "__main__":
    main()

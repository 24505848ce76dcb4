"""Listeners of two engine processes while one is killed, crashes or stops: ``megatalker bench chaos --help``.

A number of places is always taken, as in ``megatalker bench soak``. In the middle of each run something happens to one
engine process. The codes of each utterance must be those that its text has alone; nobody may lose speech; and the
report names the worst gap and the time until the process, or the one in its place, takes requests again.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from megatalker.cli.bench.playback import summary
from megatalker.serving.processes import ProcessEngine
from megatalker.serving.processes.handle import EngineHandle
from megatalker_benchmarks.report import hand_out
from megatalker_benchmarks.soak import SoakResult, checkpoint_and_settings, codes_alone, one_place, parser_of

STOPPED_S = 10.0
"""How long a process is stopped."""
RECOVER_S = 120.0
"""Longest wait until all processes take requests again."""


async def nothing(_handle: EngineHandle) -> None:
    """Let all go on, to compare with."""


async def kill(handle: EngineHandle) -> None:
    """End the process as the system does when memory runs out."""
    os.kill(handle.pid, signal.SIGKILL)


async def crash(handle: EngineHandle) -> None:
    """End the process as a wrong address in a kernel does."""
    os.kill(handle.pid, signal.SIGSEGV)


async def stop(handle: EngineHandle) -> None:
    """Stop the process for a while, as a debugger or a full swap does."""
    os.kill(handle.pid, signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    os.kill(handle.pid, signal.SIGCONT)


EVENTS: dict[str, Callable[[EngineHandle], Any]] = {"nothing": nothing, "kill": kill, "crash": crash, "stop": stop}
DEADLY = ("kill", "crash")


async def recovered(engine: ProcessEngine, engines: int, gone: EngineHandle | None) -> bool:
    """Wait until this process is gone and as many as before take requests and are warm; returns whether they do."""
    until = time.monotonic() + RECOVER_S
    while gone in engine.processes or sum(handle.able and handle.warm for handle in engine.processes) < engines:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True


async def one_event(
    engine: ProcessEngine, event: str, streams: int, seconds: float, frames: int, alone: dict[int, Any]
) -> dict[str, Any]:
    """Return what listeners heard while this happened to the first engine process."""
    found, engines = SoakResult(), len(engine.processes)
    until = time.monotonic() + seconds
    places = [asyncio.create_task(one_place(engine, place, frames, alone, until, found)) for place in range(streams)]
    await asyncio.sleep(seconds / 2)
    began, handle = time.monotonic(), engine.processes[0]
    await EVENTS[event](handle)
    served = await recovered(engine, engines, handle if event in DEADLY else None)
    recover_s = time.monotonic() - began
    await asyncio.gather(*places)
    heard = summary(found.playbacks)
    return {
        "event": event,
        "spoken": sum(found.manners.values()),
        "codes_that_differ": found.differ,
        "lost": sum(found.errors.values()),
        "errors": dict(found.errors),
        "listeners_with_underruns": heard["listeners_with_underruns"],
        "worst_gap_ms": heard["worst_gap_ms"],
        "recovered": served,
        "recover_s": round(recover_s, 2),
    }


async def run(engine: ProcessEngine, events: list[str], streams: int, seconds: float, frames: int) -> dict[str, Any]:
    """Return what was heard during each event."""
    alone = await codes_alone(engine, streams, frames)
    cases = [await one_event(engine, event, streams, seconds, frames, alone) for event in events]
    return {
        "checkpoint": engine.checkpoint.name,
        "backend": engine.backend,
        "codec": engine.codec,
        "devices": [handle.device for handle in engine.processes],
        "streams": streams,
        "seconds": seconds,
        "cases": cases,
    }


def main() -> None:
    """Command line."""
    parser = parser_of(__doc__, seconds=30.0, frames=60)
    parser.add_argument("events", nargs="*", choices=[[], *EVENTS], help="by default all")
    parser.add_argument("--devices", default="cpu,cpu", help="an engine process for each")
    options = parser.parse_args()
    devices = options.devices.split(",")
    with (
        checkpoint_and_settings(options, devices[0]) as (checkpoint, settings),
        ProcessEngine.open(settings, checkpoint=checkpoint, devices=devices) as engine,
    ):
        engine.warmup()
        events = options.events or list(EVENTS)
        report = asyncio.run(run(engine, events, options.streams, options.seconds, options.frames))
    hand_out(report, options.json)
    if any(case["codes_that_differ"] or case["lost"] or not case["recovered"] for case in report["cases"]):
        sys.exit("speech was lost, or other codes were heard, or an engine did not come back")

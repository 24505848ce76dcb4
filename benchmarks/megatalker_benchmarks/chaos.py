"""Listeners of ``megatalker serve`` while something happens to its processes: ``megatalker bench chaos --help``.

A number of places is always taken, as in ``megatalker bench soak``. In the middle of each run something happens to one
process of the server, or to all. The codes of each utterance must be those that its text has alone; nobody may lose
speech; and the report names the worst gap and the time until as many processes as before are ready.
"""

import asyncio
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from megatalker.cli.bench.playback import summary
from megatalker.serving.client import RemoteEngine
from megatalker_benchmarks.report import hand_out
from megatalker_benchmarks.serve_process import ServeProcess, serve_process
from megatalker_benchmarks.soak import SoakResult, checkpoint_and_settings, codes_alone, one_place, parser_of

HARM_S = 10.0
"""How long a process is stopped, or can write no file."""
RECOVER_S = 120.0
"""Longest wait until all processes are ready."""


async def nothing(_server: ServeProcess) -> None:
    """Let all go on, to compare with."""


async def kill(server: ServeProcess) -> None:
    """End an engine process as the system does when memory runs out."""
    server.engines[0].send_signal(signal.SIGKILL)


async def crash(server: ServeProcess) -> None:
    """End an engine process as a wrong address in a kernel does."""
    server.engines[0].send_signal(signal.SIGSEGV)


async def stop(server: ServeProcess) -> None:
    """Stop an engine process for a while, as a debugger or a full swap does."""
    one = server.engines[0]
    one.send_signal(signal.SIGSTOP)
    await asyncio.sleep(HARM_S)
    one.send_signal(signal.SIGCONT)


async def front_end(server: ServeProcess) -> None:
    """End a front end, whose clients go on at another one."""
    server.front_ends[0].send_signal(signal.SIGKILL)


async def memory(server: ServeProcess) -> None:
    """Give an engine process no more memory than it has."""
    one = server.engines[0]
    resource.prlimit(one.pid, resource.RLIMIT_AS, (one.memory_info().vms, resource.RLIM_INFINITY))


async def disk(server: ServeProcess) -> None:
    """Let no process write to a file for a while, as on a full disk."""
    processes = [server.process, *server.engines, *server.front_ends]
    for one in processes:
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    await asyncio.sleep(HARM_S)
    for one in processes:
        if one.is_running():
            resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


async def reload(server: ServeProcess) -> None:
    """Replace all processes by new ones, as ``megatalker reload`` does."""
    server.process.send_signal(signal.SIGHUP)


EVENTS: dict[str, Callable[[ServeProcess], Awaitable[None]]] = {
    one.__name__: one for one in (nothing, kill, crash, stop, front_end, memory, disk, reload)
}
REPLACED = ("kill", "crash", "front_end", "reload")
"""Events after which other processes are there."""


async def recovered(server: ServeProcess, before: set[int], *, others: bool) -> bool:
    """Wait until as many processes as ``before`` are there, and ready; with ``others`` not the same ones."""
    until = time.monotonic() + RECOVER_S
    while True:
        now = {one.pid for one in (*server.engines, *server.front_ends)}
        if len(now) == len(before) and (now != before or not others) and await asyncio.to_thread(server.is_ready):
            return True
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.05)


async def one_event(
    server: ServeProcess, engine: RemoteEngine, event: str, streams: int, seconds: float, frames: int, alone: Any
) -> dict[str, Any]:
    """Return what listeners heard while this happened."""
    found, before = SoakResult(), {one.pid for one in (*server.engines, *server.front_ends)}
    until = time.monotonic() + seconds
    places = [asyncio.create_task(one_place(engine, place, frames, alone, until, found)) for place in range(streams)]
    await asyncio.sleep(seconds / 2)
    began = time.monotonic()
    await EVENTS[event](server)
    served = await recovered(server, before, others=event in REPLACED)
    recover_s = time.monotonic() - began
    await asyncio.gather(*places)
    heard = summary(found.playbacks)
    return {
        "event": event,
        "spoken": sum(found.manners.values()),
        "codes_that_differ": found.differ,
        "refused": found.refused,
        "lost": sum(found.errors.values()),
        "errors": dict(found.errors),
        "listeners_with_underruns": heard["listeners_with_underruns"],
        "worst_gap_ms": heard["worst_gap_ms"],
        "recovered": served,
        "recover_s": round(recover_s, 2),
    }


async def run(server: ServeProcess, events: list[str], streams: int, seconds: float, frames: int) -> list[Any]:
    """Return what was heard during each event. A client has the address twice, and goes on if it loses a connection."""
    with RemoteEngine([server.url, server.url]) as engine:
        alone = await codes_alone(engine, streams, frames)
        return [await one_event(server, engine, event, streams, seconds, frames, alone) for event in events]


def main() -> None:
    """Command line."""
    parser = parser_of(__doc__, seconds=30.0, frames=60)
    parser.add_argument("events", nargs="*", choices=[[], *EVENTS], help="by default all")
    parser.add_argument("--devices", default="cpu,cpu", help="an engine process for each")
    parser.add_argument("--front-ends", default="2")
    options = parser.parse_args()
    with checkpoint_and_settings(options, options.devices.split(",")[0]) as (checkpoint, settings):
        chosen = {
            "BACKEND": options.backend,
            "FALLBACKS": "[]",
            "MAX_STREAMS": str(settings.max_streams),
            "MAX_WAITING": str(settings.max_waiting),
            "SHORT_SPEECH": "believe",
            "SERVER__DEVICES": options.devices,
            "SERVER__FRONT_ENDS": options.front_ends,
            "SERVER__MAX_STREAMS_PER_CONNECTION": str(settings.max_streams),
        }
        variables = {f"MEGATALKER_{name}": value for name, value in chosen.items()}
        with serve_process("--checkpoint", str(checkpoint.folder), environment=variables) as server:
            events = options.events or list(EVENTS)
            cases = asyncio.run(run(server, events, options.streams, options.seconds, options.frames))
    report = {
        "checkpoint": checkpoint.name,
        "backend": options.backend,
        "devices": options.devices.split(","),
        "front_ends": options.front_ends,
        "streams": options.streams,
        "seconds": options.seconds,
        "cases": cases,
    }
    hand_out(report, options.json)
    if any(case["codes_that_differ"] or case["lost"] or not case["recovered"] for case in cases):
        sys.exit("speech was lost, or other codes were heard, or processes did not come back")


if __name__ == "__main__":
    main()

"""Open an engine or connect to servers, run every load, and summarise."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import SecretStr

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.drive import Listen, Script, drive, listening_to
from megatalker.cli.bench.load_report import LoadCase, LoadReport
from megatalker.cli.bench.report import command_line, environment, environment_of_engine
from megatalker.cli.bench.servers import Servers, SpeechRoute
from megatalker.cli.bench.traffic import Traffic, largest
from megatalker.engine import Engine
from megatalker.engine.interpreter import collect_rarely, spare_what_is_loaded, switch_threads_often
from megatalker.settings import Settings

FIRST_TRIED = 16
"""Streams at once with which the search for the capacity begins."""
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Measurement:
    """The loads to run, and what they run on."""

    loads: Sequence[Traffic]
    script: Script
    seconds: float
    """How long each load lasts."""
    most: int | None
    """The most streams that are tried where the capacity is searched; ``None``: it is not."""
    urls: Sequence[str] = ()
    """Addresses of servers, in place of an engine in this process."""
    connections: int = 1
    """WebSockets to each of them."""
    http: bool = False
    """Use :class:`SpeechRoute` in place of WebSockets."""


def measure(
    wanted: Measurement,
    settings: Settings,
    progress: Callable[[str], None],
) -> LoadReport:
    """Run every load in turn, on one warm engine.

    Args:
        wanted: the loads, and on what.
        settings: of an engine in this process, or the key of the servers.
        progress: told what is being done.

    Raises:
        MegatalkerError: the engine cannot be opened, or the server not be reached.
    """
    with ExitStack() as stack:
        if wanted.urls:
            facts, shown = environment(server=", ".join(wanted.urls)), {}
            runner = _Runner(_served(wanted, settings.server.api_key, stack), None, wanted, progress)
        else:
            progress("loading")
            checkpoint = Checkpoint.open(settings.checkpoint)
            engine = stack.enter_context(Engine.open(settings, checkpoint=checkpoint))
            engine.warmup()
            facts = environment_of_engine(engine)
            shown = settings.model_dump(mode="json", exclude={"server", "ray", "agent"})
            runner = _Runner(listening_to(engine), engine, wanted, progress)
        spare_what_is_loaded()
        collect_rarely()  # a pause of this process would be heard as a gap
        switch_threads_often()
        cases, capacity = asyncio.run(runner.run())
        return LoadReport(command_line(), facts, shown, asdict(wanted.script), cases, capacity)


def _served(wanted: Measurement, key: SecretStr | None, stack: ExitStack) -> Listen:
    """Return the servers in the form that loads are played against, once each has shown that it speaks."""
    if wanted.http:
        route = SpeechRoute(wanted.urls, key)
        asyncio.run(route.check())
        return route.listen
    servers = stack.enter_context(Servers(wanted.urls, wanted.connections, key))
    servers.check()
    return listening_to(servers)


class _Runner:
    def __init__(
        self, listen: Listen, local: Engine | None, wanted: Measurement, progress: Callable[[str], None]
    ) -> None:
        self._listen, self._local, self._wanted, self._progress = listen, local, wanted, progress
        self._cases: list[LoadCase] = []

    async def run(self) -> tuple[list[LoadCase], int | None]:
        wanted = self._wanted
        await drive(self._listen, Traffic("burst", 2), wanted.script, WARM_UP_S)
        for traffic in wanted.loads:
            await self._measure(traffic)
        if wanted.most is None:
            return self._cases, None
        return self._cases, await largest(self._bears, FIRST_TRIED, wanted.most)

    async def _bears(self, streams: int) -> bool:
        return (await self._measure(Traffic("streams", streams))).borne

    async def _measure(self, traffic: Traffic) -> LoadCase:
        self._progress(f"{traffic}, {self._wanted.seconds:g} s")
        before = self._metrics()
        result = await drive(self._listen, traffic, self._wanted.script, self._wanted.seconds)
        after = self._metrics()
        added = None
        if before is not None and after is not None:
            added = {name: value - before[name] for name, value in after.items()}
            ticks, begun, calls = (max(1, added[name]) for name in ("ticks", "begun", "decode_calls"))
            added["host_ms_a_tick"] = added["host_s"] / ticks * 1e3
            added["backend_ms_a_tick"] = added["backend_s"] / ticks * 1e3
            added["queue_wait_ms"] = added["queue_wait_s"] / begun * 1e3
            added["decode_width"] = added["decode_rows"] / calls
        self._cases.append(LoadCase.of(result, added))
        return self._cases[-1]

    def _metrics(self) -> dict[str, Any] | None:
        """Return the counters of an engine in this process that only grow."""
        if self._local is None:
            return None
        found = asdict(self._local.metrics())
        shrinking = ("active", "waiting", "idle", "sustainable")
        return {name: value for name, value in found.items() if type(value) in (int, float) and name not in shrinking}

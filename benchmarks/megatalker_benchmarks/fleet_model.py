"""A fleet of servers as a queue: what callers wait for, from service times that ``megatalker load`` measured.

A server works as the engine does, launch by launch: waiting requests that find a row get their first chunk together, in
the time that this many take at once; otherwise all streams that may go on get a frame, in the time that they take.
"""

import bisect
import json
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.report import percentiles_ms
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine.speech.chunks import chunk_limit, hold_until
from megatalker.errors import InvalidRequestError
from megatalker.settings import Settings

CHUNK_FRAMES = Settings.model_fields["max_chunk_frames"].default
Curve = Sequence[tuple[float, float]]


def at(curve: Curve, x: float) -> float:
    """Interpolate between the points by straight lines; beyond them in proportion to ``x``."""
    if x <= curve[0][0]:
        return curve[0][1]
    index = bisect.bisect_left(curve, (x, float("-inf")))
    if index == len(curve):
        return curve[-1][1] * x / curve[-1][0]
    (x0, y0), (x1, y1) = curve[index - 1 : index + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Service times of one server, in seconds."""

    frame: Curve
    """Streams -> time in which each of them gets a frame."""
    first: Curve
    """Requests at once -> time until half of them have their first chunk."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the cases ``streams`` and ``burst`` of a ``load.json``; the median of repeated cases.

        Raises:
            InvalidRequestError: it is no such file, lacks either, or the streams were held back by ``--ahead``.
        """
        report = read_report(file)
        if report["script"]["ahead_s"] is not None:
            raise InvalidRequestError(f"{str(file)!r} was measured with --ahead, which hides how fast streams can be")
        frame: defaultdict[float, list[float]] = defaultdict(list)
        first: defaultdict[float, list[float]] = defaultdict(list)
        for case in report["cases"]:
            amount = case["amount"]
            if case["pattern"] == "streams":
                frame[amount].append(amount * FRAME_SECONDS / case["speech_s_per_s"])
            elif case["pattern"] == "burst":
                first[amount].append(case["first_chunk_ms"]["p50"] / 1e3)
        if not frame or not first:
            raise InvalidRequestError(
                f"{str(file)!r} lacks cases; measure with --streams 1,2,4... and --burst 1,2,4..."
            )
        return cls(_medians(frame), _medians(first))


def _medians(found: Mapping[float, Sequence[float]]) -> Curve:
    return sorted((amount, median(values)) for amount, values in found.items())


def read_report(file: Path) -> dict[str, Any]:
    """Read what ``megatalker load`` wrote; raise ``InvalidRequestError`` for anything else."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        return {name: report[name] for name in ("script", "cases")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(f"{str(file)!r} is no load.json of this version of megatalker: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests that come."""

    rate: float
    """Requests a second, at random moments (Poisson)."""
    length_s: float
    """Median duration of an utterance."""
    spread: float = 0.0
    """Standard deviation of its logarithm; 0: all are as long."""
    seconds: float = 600.0
    """Simulated time."""
    seed: int = 0

    def requests(self) -> Iterator[tuple[float, int]]:
        """Yield arrival and frames of each request, at the moments of ``megatalker load --rate``."""
        chance = random.Random(self.seed)
        for moment in Traffic("rate", self.rate).starts(self.seconds, self.seed):
            seconds = self.length_s * chance.lognormvariate(0.0, self.spread)
            yield moment, max(1, round(seconds / FRAME_SECONDS))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas that serve."""

    replicas: int
    rows: int
    """Streams that a replica runs at a time: ``max_streams``."""
    max_waiting: int = 64
    ahead_s: float | None = None
    """Seconds that speech may be ahead of playback: ``max_ahead_s``. ``None``: as fast as possible."""


@dataclass(slots=True)
class SimulatedStream:
    """One utterance on a simulated server."""

    left: int
    first_at: float
    made: int = 1

    def ready_at(self, ahead_s: float | None) -> float:
        """Return when its next frame may be made: a chunk begins when the engine lets it, and has no pause within."""
        chunk = chunk_limit(CHUNK_FRAMES, ahead_s)
        if ahead_s is None or (self.made - 1) % chunk:  # the first chunk is one frame
            return self.first_at
        return hold_until(self.first_at + self.made * FRAME_SECONDS, ahead_s, chunk)


@dataclass(slots=True)
class Server:
    """One replica. Its clock is the end of its last launch."""

    times: ServiceTimes
    fleet: Fleet
    clock: float = 0.0
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    """Arrival and frames of each request."""
    running: list[SimulatedStream] = field(default_factory=list)
    busy_s: float = 0.0
    first_chunks_s: list[float] = field(default_factory=list)
    """Times from the arrival to the first chunk, for requests that were begun."""
    refused: int = 0

    def arrive(self, moment: float, frames: int) -> None:
        """Add a request; arrivals must come in order."""
        self.advance(moment)
        if len(self.running) + len(self.waiting) >= self.fleet.rows + self.fleet.max_waiting:
            self.refused += 1
            return
        self.waiting.append((moment, frames))

    def advance(self, until: float) -> None:
        """Run all launches that begin before ``until``."""
        while self.clock < until and (self.running or self.waiting):
            starting = min(len(self.waiting), self.fleet.rows - len(self.running))
            if starting:
                self._begin(starting)
                continue
            ready = [stream for stream in self.running if stream.ready_at(self.fleet.ahead_s) <= self.clock]
            if ready:
                self._launch(at(self.times.frame, len(ready)))
                for stream in ready:
                    stream.made += 1
                    stream.left -= 1
                self.running = [stream for stream in self.running if stream.left]
            else:
                self.clock = min(until, *(stream.ready_at(self.fleet.ahead_s) for stream in self.running))
        self.clock = max(self.clock, until) if until != float("inf") else self.clock

    def _begin(self, starting: int) -> None:
        self._launch(at(self.times.first, starting))
        for _ in range(starting):
            arrived, frames = self.waiting.popleft()
            self.first_chunks_s.append(self.clock - arrived)
            if frames > 1:
                self.running.append(SimulatedStream(frames - 1, self.clock))

    def _launch(self, seconds: float) -> None:
        self.clock += seconds
        self.busy_s += seconds


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Results for the callers of a simulated fleet."""

    requests: int
    refused: int
    first_chunk_ms: dict[str, float] | None
    """p50, p95, p99, max; ``None`` where nobody heard anything."""
    utilisation: float
    """Share of the time in which a replica computes."""
    speech_s_per_s: float


def simulate(times: ServiceTimes, demand: Demand, fleet: Fleet) -> FleetOutcome:
    """Send requests to the replicas in turn, as a load balancer does."""
    servers = [Server(times, fleet) for _ in range(fleet.replicas)]
    requests, frames = 0, 0
    for moment, length in demand.requests():
        servers[requests % fleet.replicas].arrive(moment, length)
        requests, frames = requests + 1, frames + length
    for server in servers:
        server.advance(float("inf"))
    waits = [wait for server in servers for wait in server.first_chunks_s]
    return FleetOutcome(
        requests=requests,
        refused=sum(server.refused for server in servers),
        first_chunk_ms=percentiles_ms(waits),
        utilisation=sum(server.busy_s for server in servers) / fleet.replicas / demand.seconds,
        speech_s_per_s=frames * FRAME_SECONDS / demand.seconds,
    )


def replicas_needed(times: ServiceTimes, demand: Demand, fleet: Fleet, p95_ms: float, most: int = 4096) -> int | None:
    """Return the fewest replicas at which 95 % have their first chunk in time and none is refused; ``None``: not with
    ``most``.
    """

    def enough(replicas: int) -> bool:
        found = simulate(times, demand, replace(fleet, replicas=replicas))
        return not found.refused and found.first_chunk_ms is not None and found.first_chunk_ms["p95"] <= p95_ms

    good = 1
    while not enough(good):
        good *= 2
        if good > most:
            return None
    bad = good // 2
    while good - bad > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    return good

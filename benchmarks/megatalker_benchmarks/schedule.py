"""Scheduling on a machine that is not here, in virtual time: first chunks, gaps and waits, without a GPU.

megatalker bench schedule                                     an H200 on a host as quick as this one
megatalker bench schedule --host 65 --rate 100,200 --seeds 9  a million steps of Python's loop take that host 65 ms
megatalker bench schedule --host 22 --against load.json       loads of a report of megatalker load, as it measured them
megatalker bench schedule --machine processor --max-streams 8 --rate 2,5,10 --burst 8 --streams 4,8

Each load meets an engine that has just started, once for each seed of what delays its calls: differences within the
spread of seeds mean nothing. A gap is a moment at which a listener that keeps no buffer has nothing to play. `waited /
told` compares the time to the first chunk with the wait that was foreseen, where that was more than a second.
"""

import argparse
import json
import sys
import tempfile
import timeit
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from megatalker import Checkpoint, Settings
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.errors import InvalidRequestError
from megatalker.testing.random_checkpoint import TINY, write_checkpoint
from megatalker_benchmarks.report import add_json_option, number, tabulate, whole
from megatalker_benchmarks.virtual_engine import Listener, VirtualCaller, VirtualEngine, at_once, poisson
from megatalker_benchmarks.virtual_machine import H200, PROCESSOR, MachineCosts, VirtualClock

USUAL_HOST_MS = 50.0
"""A million steps of Python's loop, on a host whose calls take what :data:`H200` says."""
ENDLESS_S = 600.0
TOLD_S = 1.0
"""Shorter waits are told as this."""


@dataclass(frozen=True)
class OfferedLoad:
    """Callers that come at random moments, or at once."""

    pattern: str
    """``rate``, ``burst`` or ``streams``, like in a report of ``megatalker load``."""
    amount: float
    seconds: float
    length_s: float
    ahead_s: float | None

    def callers(self, seed: int) -> list[VirtualCaller]:
        """Return the callers; those of another seed come at other moments."""
        if self.pattern == "rate":
            return poisson(self.amount, self.seconds, seed, speech_s=self.length_s, max_ahead_s=self.ahead_s)
        speech_s = ENDLESS_S if self.pattern == "streams" else self.length_s
        return at_once(int(self.amount), speech_s=speech_s, max_ahead_s=self.ahead_s)

    def run(self, checkpoint: Checkpoint, machine: MachineCosts, settings: Settings, seed: int) -> "Heard":
        """Return what listeners hear of an engine that has just started."""
        until_s = 1.0 + self.seconds + (0.0 if self.pattern == "streams" else 60.0)
        engine = VirtualEngine(checkpoint, VirtualClock(machine, seed), settings)
        return Heard.of(engine.listen(self.callers(seed), until_s))


@dataclass(frozen=True)
class Heard:
    """One load, as its listeners heard it."""

    first_p50_ms: float
    first_p95_ms: float
    gaps: int
    longest_gap_ms: float
    refused: int
    speech_s_per_s: float
    waited_over_told: float | None
    """The longest wait as a multiple of the one that was foreseen; ``None`` where nobody had to wait for a second."""

    @classmethod
    def of(cls, listeners: Sequence[Listener]) -> "Heard":
        """Return the figures of these listeners."""
        first = [one.first_s for one in listeners if one.first_s] or [0.0]
        gaps = [gap for one in listeners for gap in one.gaps_s]
        told = [(one, told) for one in listeners for told in one.told[:1] if not told.refused and one.first_s]
        waits = [one.first_s / told.wait_s for one, told in told if told.wait_s is not None and told.wait_s > TOLD_S]
        wall_s = max(one.heard_at for one in listeners) - min(one.caller.at for one in listeners)
        p50, p95 = (1e3 * float(np.quantile(first, share)) for share in (0.5, 0.95))
        return cls(
            round(p50, 1),
            round(p95, 1),
            len(gaps),
            round(1e3 * max(gaps, default=0.0), 1),
            sum(bool(one.told) and one.told[0].refused for one in listeners),
            round(sum(one.frames for one in listeners) * FRAME_SECONDS / max(FRAME_SECONDS, wall_s), 1),
            round(max(waits), 2) if waits else None,
        )


def host_ms() -> float:
    """Return the milliseconds of a million steps of Python's loop here: of several, the quickest."""
    return 1e3 * min(timeit.repeat("for _ in range(10**6): pass", number=1, repeat=5))


def loads_of(options: argparse.Namespace) -> list[tuple[OfferedLoad, dict[str, Any] | None]]:
    """Return the loads that were asked for, or those of a report with what was measured.

    Raises:
        InvalidRequestError: the report is none of ``megatalker load``.
    """
    if options.against is None:
        wanted = [(pattern, amount) for pattern in ("rate", "burst", "streams") for amount in getattr(options, pattern)]
        return [(OfferedLoad(*one, options.seconds, options.length, options.ahead), None) for one in wanted]
    try:
        report = json.loads(options.against.read_text(encoding="utf-8"))
        length_s, ahead_s, cases = report["script"]["length_s"], report["script"]["ahead_s"], report["cases"]
        return [
            (OfferedLoad(case["pattern"], case["amount"], case["seconds"], length_s or options.length, ahead_s), case)
            for case in cases
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"{str(options.against)!r} is no report of megatalker load: {error!r}") from error


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each load; raises as :func:`loads_of`."""
    loads, machine = loads_of(options), PROCESSOR if options.machine == "processor" else H200
    host = options.host / USUAL_HOST_MS
    device = host if options.machine == "processor" else 1 / options.device_speed
    most, waiting, rows = options.max_streams, options.max_waiting, list[dict[str, Any]]()
    settings = Settings(max_streams=most, max_waiting=waiting, max_open=most + waiting, max_wait_s=options.max_wait)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder) / "tiny", TINY))
        known = dict[OfferedLoad, dict[str, Any]]()
        for load, measured in loads:
            if load not in known:  # a report may repeat a load
                seeds = range(1, options.seeds + 1)
                heard = [asdict(load.run(checkpoint, machine.at(host, device), settings, seed)) for seed in seeds]
                known[load] = {name: [one[name] for one in heard] for name in heard[0]}
            figures = known[load]
            rows.append(asdict(load) | {"heard": figures} | ({} if measured is None else {"measured": measured}))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Show a row for each load; cells with two numbers are the least and the most of all seeds."""
    names = ("first p50, ms", "p95, ms", "gaps", "longest, ms", "refused", "speech, s/s", "waited / told")
    compared = any("measured" in row for row in rows)
    shown = Table("load", *names, *(("measured p95, ms", "gaps", "speech, s/s") if compared else ()))
    for row in rows:
        cells = [f"{row['amount']:g} {'a second' if row['pattern'] == 'rate' else row['pattern']}"]
        cells += [_span([value for value in values if value is not None]) for values in row["heard"].values()]
        if compared:
            case = row["measured"]
            cells += [f"{case['first_chunk_ms']['p95']:.0f}", f"{case['underruns']}", f"{case['speech_s_per_s']:.0f}"]
        shown.add_row(*cells)
    return shown


def _span(values: Sequence[float]) -> str:
    if not values:
        return ""
    texts = [
        f"{value:.2f}" if value < 5 and value != int(value) else f"{value:.0f}" for value in (min(values), max(values))
    ]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _amounts(text: str) -> list[float]:
    return [number()(part) for part in text.split(",") if part]


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "megatalker bench schedule", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=_amounts, default=[20.0, 100.0, 200.0], help="requests a second")
    parser.add_argument("--burst", type=_amounts, default=[8.0, 128.0], help="requests at once")
    parser.add_argument("--streams", type=_amounts, default=[384.0, 500.0, 800.0], help="endless ones at once")
    parser.add_argument("--seconds", type=number(), default=8.0, help="of each load")
    parser.add_argument("--length", type=number(), default=4.0, help="seconds of speech of a request")
    parser.add_argument("--ahead", type=number(), default=2.0, help="seconds that speech may be ahead of playback")
    parser.add_argument("--host", type=number(), help="ms of a million steps of Python's loop; left out: measured here")
    parser.add_argument("--machine", choices=("h200", "processor"), default="h200")
    parser.add_argument("--device-speed", type=number(), default=1.0, help="times that of an H200")
    parser.add_argument("--max-streams", type=whole(), default=1024)
    parser.add_argument("--max-waiting", type=whole(0), default=4096)
    parser.add_argument("--max-wait", type=number(), help="seconds; left out: without limit")
    parser.add_argument("--seeds", type=whole(), default=5)
    parser.add_argument("--against", type=Path, help="a report of megatalker load: its loads instead")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    options.host = options.host or host_ms()
    return options


def main() -> int:
    """Print a table, and keep the figures where that is asked for."""
    options = options_of(sys.argv[1:])
    sys.stdout.write(f"a million steps of Python's loop take the host {options.host:.0f} ms\n")
    return tabulate(lambda: run(options), table, options.json, host_ms=options.host)


if __name__ == "__main__":
    sys.exit(main())

"""How many servers, and what callers would wait for: a simulation with measured service times.

megatalker load ... --streams 1,2,4,8 --burst 1,2,4,8 --out one           one server, alone
megatalker bench fleet one/load.json --rate 5,10,20 --max-streams 8       how many are needed, what they cost
megatalker bench fleet one/load.json --replicas 2 --max-streams 8 --against two/load.json
                                                                          what a run on two of them says to it
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from megatalker.errors import InvalidRequestError
from megatalker_benchmarks.fleet_model import Demand, Fleet, ServiceTimes, read_report, replicas_needed, simulate
from megatalker_benchmarks.report import add_json_option, number, tabulate, whole


def predict(times: ServiceTimes, demand: Demand, fleet: Fleet, price: float) -> dict[str, Any]:
    """Return one row of the result. ``price`` is dollars an hour of a machine."""
    outcome = asdict(simulate(times, demand, fleet))
    speech = outcome["speech_s_per_s"]
    cost = {"dollars_an_hour": fleet.replicas * price, "dollars_an_hour_of_speech": fleet.replicas * price / speech}
    return {"rate": demand.rate, "replicas": fleet.replicas} | outcome | cost


def compare(times: ServiceTimes, file: Path, fleet: Fleet, spread: float, price: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each ``rate`` of a run on these replicas: the same arrivals, predicted and measured."""
    report = read_report(file)
    script, cases = report["script"], [case for case in report["cases"] if case["pattern"] == "rate"]
    if not cases or script["length_s"] is None:
        raise InvalidRequestError(f"{str(file)!r} has no case of --rate with --length, which can be compared")
    fleet = replace(fleet, ahead_s=script["ahead_s"])
    for case in cases:
        demand = Demand(case["amount"], script["length_s"], spread, case["seconds"])
        row = predict(times, demand, fleet, price)
        measured = {"requests": case["requests"], "first_chunk_ms": case["first_chunk_ms"], "errors": case["errors"]}
        off = {name: row["first_chunk_ms"][name] / case["first_chunk_ms"][name] - 1 for name in ("p50", "p95")}
        yield row | {"measured": measured, "predicted_over_measured_less_1": off}


def table(rows: list[dict[str, Any]]) -> Table:
    """Show a row for each rate; times are milliseconds."""
    compared = "measured" in rows[0]
    what = ("measured p50", "p95", "off p50", "p95") if compared else ("p99", "$ an hour", "$ an hour of speech")
    shown = Table("a second", "replicas", "busy", "refused", "first p50", "p95", *what)
    for row in rows:
        heard = row["first_chunk_ms"]
        cells = [f"{row['rate']:g}", f"{row['replicas']}", f"{row['utilisation']:.0%}", f"{row['refused']}"]
        cells += [f"{heard[name]:.0f}" for name in ("p50", "p95")]
        if compared:
            cells += [f"{row['measured']['first_chunk_ms'][name]:.0f}" for name in ("p50", "p95")]
            cells += [f"{row['predicted_over_measured_less_1'][name]:+.0%}" for name in ("p50", "p95")]
        else:
            cells += [f"{heard['p99']:.0f}", f"{row['dollars_an_hour']:.2f}", f"{row['dollars_an_hour_of_speech']:.3f}"]
        shown.add_row(*cells)
    return shown


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "megatalker bench fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, help="load.json of one server: cases --streams and --burst")
    parser.add_argument("--rate", type=_numbers, default=[], help="requests a second, comma-separated")
    parser.add_argument("--length", type=number(), default=4.0, help="median seconds of speech of a request")
    parser.add_argument(
        "--spread", type=number(zero=True), default=0.0, help="of the length: standard deviation of its logarithm"
    )
    parser.add_argument("--ahead", type=number(), help="seconds that speech may be ahead of playback")
    parser.add_argument("--seconds", type=number(), default=600.0, help="that are simulated")
    parser.add_argument("--max-streams", type=whole(), required=True, help="rows of a replica")
    parser.add_argument("--max-waiting", type=whole(0), default=64)
    parser.add_argument("--replicas", type=whole(), help="left out: as few as --p95 needs")
    parser.add_argument(
        "--p95", type=number(), default=200.0, help="ms within which 95 in 100 shall have their first chunk"
    )
    parser.add_argument("--price", type=number(zero=True), default=3.0, help="dollars an hour of one machine")
    parser.add_argument("--against", type=Path, help="load.json of a run on the same number of replicas: cases --rate")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.against is not None and (options.rate or options.replicas is None):
        parser.error("--against says which rates; give --replicas, and no --rate")
    if options.against is None and not options.rate:
        parser.error("give --rate, or --against")
    return options


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each rate.

    Raises:
        InvalidRequestError: a file is not what it should be, or no number of replicas is enough.
    """
    times = ServiceTimes.read(options.measured)
    fleet = Fleet(options.replicas or 1, options.max_streams, options.max_waiting, options.ahead)
    if options.against is not None:
        return list(compare(times, options.against, fleet, options.spread, options.price))
    rows = []
    for rate in options.rate:
        demand = Demand(rate, options.length, options.spread, options.seconds)
        needed = options.replicas or replicas_needed(times, demand, fleet, options.p95)
        if needed is None:
            raise InvalidRequestError(
                f"no number of replicas has the first chunk within {options.p95:g} ms; raise --p95"
            )
        rows.append(predict(times, demand, replace(fleet, replicas=needed), options.price))
    return rows


def main() -> int:
    options = options_of(sys.argv[1:])
    return tabulate(lambda: run(options), table, options.json)


if __name__ == "__main__":
    sys.exit(main())

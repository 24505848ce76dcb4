"""``megatalker bench fleet``: against closed forms, and against the run that it was checked with."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.errors import InvalidRequestError
from megatalker_benchmarks.fleet import main, options_of, run
from megatalker_benchmarks.fleet_model import Demand, Fleet, Server, ServiceTimes, at, replicas_needed, simulate

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "cpu"
TIMES = ServiceTimes(frame=[(1, 0.010), (2, 0.015), (4, 0.025)], first=[(1, 0.020), (2, 0.030)])
LENGTH_S = 4.0
FRAMES = 50
ALONE_S = 0.020 + (FRAMES - 1) * 0.010
"""Time that a server takes for one utterance, when it has no other."""


def test_a_curve_is_straight_between_its_points_and_in_proportion_beyond() -> None:
    assert [at(TIMES.frame, x) for x in (0.5, 1, 1.5, 2, 3, 8)] == pytest.approx(
        [0.010, 0.010, 0.0125, 0.015, 0.020, 0.050]
    )


def test_a_request_to_an_idle_server_waits_only_for_its_first_chunk() -> None:
    found = simulate(TIMES, Demand(rate=0.01, length_s=LENGTH_S, seconds=4_000), Fleet(1, rows=4))
    assert found.first_chunk_ms is not None
    assert found.first_chunk_ms["max"] == pytest.approx(20)
    assert found.utilisation == pytest.approx(found.requests * ALONE_S / 4_000)


@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_one_row_is_the_queue_of_the_textbooks(busy: float) -> None:
    """Pollaczek and Khinchine: random arrivals, constant service, one at a time."""
    alone_s, seconds = 0.020 + (5 - 1) * 0.010, 2_400
    server = Server(TIMES, Fleet(1, rows=1, max_waiting=10_000))
    for moment, frames in Demand(rate=busy / alone_s, length_s=5 * FRAME_SECONDS, seconds=seconds).requests():
        server.arrive(moment, frames)
    server.advance(float("inf"))
    assert server.busy_s == pytest.approx(busy * seconds, rel=0.03)
    wait_s = mean(server.first_chunks_s) - 0.020
    assert wait_s == pytest.approx(busy * alone_s / 2 / (1 - busy), rel=0.08)


def test_speech_that_keeps_to_its_playback_holds_its_row_as_long() -> None:
    demand = Demand(rate=0.2, length_s=LENGTH_S, seconds=2_000)
    free = simulate(TIMES, demand, Fleet(1, rows=1))
    paced = simulate(TIMES, demand, Fleet(1, rows=1, ahead_s=0.5))
    assert free.first_chunk_ms is not None
    assert paced.first_chunk_ms is not None
    assert paced.utilisation == pytest.approx(free.utilisation, rel=1e-6), "it computes no more"
    assert free.first_chunk_ms["p95"] < 1_000 < paced.first_chunk_ms["p95"]


def test_requests_beyond_the_queue_are_refused() -> None:
    demand = Demand(rate=20, length_s=LENGTH_S, seconds=60)
    found = simulate(TIMES, demand, Fleet(1, rows=2, max_waiting=3))
    assert 0 < found.refused < found.requests
    assert found.first_chunk_ms is not None
    assert found.first_chunk_ms["max"] < 1e3 * 4 * ALONE_S


def test_as_many_machines_as_the_first_chunk_needs_and_no_more() -> None:
    demand, fleet = Demand(rate=5, length_s=LENGTH_S, spread=0.5, seconds=40), Fleet(1, rows=4)
    needed = replicas_needed(TIMES, demand, fleet, p95_ms=100)
    assert needed is not None
    waits = [simulate(TIMES, demand, replace(fleet, replicas=count)).first_chunk_ms for count in (needed - 1, needed)]
    assert waits[0]["p95"] > 100 >= waits[1]["p95"]
    assert replicas_needed(TIMES, demand, fleet, p95_ms=10, most=64) is None, "alone it takes 20"


def test_predictions_for_two_replicas_are_compared_with_the_measured_run() -> None:
    """The table of docs/deployment.md has the results of the model for those measurements."""
    saved = json.loads((RESULTS / "fleet.json").read_text())["rows"]
    measured, against = RESULTS / "fleet_one_replica.json", RESULTS / "fleet_two_replicas.json"
    rows = run(options_of([str(measured), "--replicas", "2", "--max-streams", "2", "--against", str(against)]))
    assert [row["first_chunk_ms"] for row in rows] == [pytest.approx(row["first_chunk_ms"]) for row in saved]
    assert all(row["requests"] == row["measured"]["requests"] for row in rows), "the same arrivals"
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    for row in rows:
        off = row["predicted_over_measured_less_1"]["p95"]
        shown = (row["first_chunk_ms"]["p95"], row["measured"]["first_chunk_ms"]["p95"], 100 * off)
        assert f"| {row['rate']:g} | {shown[0]:.0f} | {shown[1]:.0f} | {shown[2]:+.0f} % |" in page


def report(**changes: Any) -> dict[str, Any]:
    cases = [
        {"pattern": "streams", "amount": 1, "speech_s_per_s": 8.0},
        {"pattern": "streams", "amount": 1, "speech_s_per_s": 4.0},
        {"pattern": "streams", "amount": 1, "speech_s_per_s": 2.0},
        {"pattern": "burst", "amount": 1, "first_chunk_ms": {"p50": 20.0}},
    ]
    return {"script": {"ahead_s": None, "length_s": 4.0}, "cases": cases} | changes


def test_service_times_are_medians_of_measurements(tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text(json.dumps(report()))
    assert ServiceTimes.read(tmp_path / "load.json") == ServiceTimes([(1, 0.02)], [(1, 0.02)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is no load.json"),
        ("[1]", "is no load.json"),
        (json.dumps({"cases": []}), "is no load.json of this version of megatalker: KeyError"),
        (json.dumps(report(cases=[])), "lacks cases; measure with --streams"),
        (json.dumps(report(script={"ahead_s": 2.0})), "hides how fast streams can be"),
    ],
)
def test_files_that_say_nothing_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "load.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        ServiceTimes.read(tmp_path / "load.json")


def test_as_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "load.json").write_text(json.dumps(report()))
    command = ["megatalker bench fleet", str(tmp_path / "load.json"), "--max-streams", "4", "--seconds", "60"]
    out = tmp_path / "fleet.json"
    monkeypatch.setattr("sys.argv", [*command, "--rate", "0.5,1", "--price", "2", "--json", str(out)])
    assert main() == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["rate"] for row in rows] == [0.5, 1.0]
    assert all(row["dollars_an_hour"] == 2 * row["replicas"] for row in rows)
    assert all(row["first_chunk_ms"]["p95"] <= 200 for row in rows)
    monkeypatch.setattr("sys.argv", [*command, "--rate", "1", "--p95", "1"])
    assert main() == 1
    assert "no number of replicas has the first chunk within 1 ms" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit):
        main()

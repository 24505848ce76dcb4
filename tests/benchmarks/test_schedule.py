"""The benchmark of the scheduling in virtual time: what it prints, and how near it comes to what a GPU gave."""

import json
import sys
from pathlib import Path

import pytest

from megatalker_benchmarks.schedule import main, options_of, run

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
HOST_MS = {"load.json": 22, "load_together.json": 60}
"""A million steps of Python's loop on the hosts of these reports: docs/throughput.md."""


def rows_of(*arguments: str) -> list[dict]:
    return run(options_of(arguments))


def test_the_same_seeds_give_the_same_figures_and_other_hosts_others() -> None:
    few = ("--rate", "20", "--burst", "8", "--streams", "", "--seconds", "1", "--seeds", "2")
    first, again, slower = (rows_of(*few, "--host", host) for host in ("50", "50", "150"))
    assert first == again
    assert [row["pattern"] for row in first] == ["rate", "burst"]
    for row, other in zip(first, slower, strict=True):
        assert min(other["heard"]["first_p95_ms"]) > max(row["heard"]["first_p95_ms"])


def test_it_prints_a_row_for_each_load_and_keeps_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, load = tmp_path / "schedule.json", "--machine processor --max-streams 2 --burst 20 --rate 1 --streams 2"
    monkeypatch.setattr(sys, "argv", ["schedule", *load.split(), "--seconds", "2", "--seeds", "1", "--json", str(kept)])
    monkeypatch.setenv("COLUMNS", "200")
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("1 a second", "20 burst", "2 streams", "waited / told"))
    rate, burst, streams = json.loads(kept.read_text())["rows"]
    assert 0.3 < burst["heard"]["waited_over_told"][0] < 2, "eighteen of them have to wait"
    assert rate["heard"]["waited_over_told"] == [None]
    assert streams["heard"]["gaps"] == [0]


@pytest.mark.parametrize("text", ["no json", "[]", '{"cases": []}'])
def test_another_file_than_a_report_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "load.json"
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["schedule", "--host", "50", "--against", str(file)])
    assert main() == 1
    assert "is no report of megatalker load" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST_MS)
def test_first_chunks_of_committed_reports_are_foretold(name: str) -> None:
    """Within a third of what an H200 gave, where it did not differ as much from one load to the next itself."""
    rows = rows_of("--against", str(RESULTS / name), "--host", str(HOST_MS[name]), "--seeds", "2")
    found = {(row["pattern"], row["amount"]): row for row in rows}
    compared = [("rate", 20.0), ("rate", 40.0), ("rate", 100.0), ("burst", 128), ("streams", 500)]
    for key in compared:
        measured = [row["measured"]["first_chunk_ms"]["p95"] for row in rows if (row["pattern"], row["amount"]) == key]
        heard = found[key]["heard"]["first_p95_ms"]
        assert min(heard) < 1.34 * max(measured), key
        assert max(heard) > min(measured) / 1.34, key
        assert found[key]["heard"]["gaps"] == [0, 0]

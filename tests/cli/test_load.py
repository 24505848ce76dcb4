"""``megatalker load`` as a user meets it."""

import json
from pathlib import Path

import pytest

from commands import error_of, megatalker
from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.load_command import load
from megatalker.errors import InvalidRequestError


@pytest.mark.slow
def test_a_load_on_an_engine_in_the_process(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    done = megatalker(
        *("load", "--burst", "2", "--rate", "4", "--seconds", "1", "--length", "0.4", "--out", "results"),
        *("--backend", "compiled", "--checkpoint", str(tiny_custom_voice.folder)),
        cwd=tmp_path,
        MEGATALKER_BACKENDS__COMPILED__COMPILE="off",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "results" / "load.json").read_text())
    assert report["command"].startswith("megatalker load --burst 2")
    assert report["environment"]["backend"] == "compiled"
    assert [case["pattern"] for case in report["cases"]] == ["rate", "burst"]
    assert report["cases"][1]["heard"] == 2
    assert (tmp_path / "results" / "load.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    done = megatalker("load", "--streams", "8,x", cwd=tmp_path)
    assert done.returncode == 1
    assert "--streams is '8,x', expected whole numbers from 1 on, comma-separated" in error_of(done.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no load"),
        ({"streams": "0"}, "--streams is '0'"),
        ({"burst": "1.5"}, "--burst is '1.5'"),
        ({"rate": "-1"}, "--rate is '-1', expected numbers above 0"),
        ({"rate": "nan"}, "--rate"),
        ({"burst": "100001"}, "100001 at once are 100001 requests, expected 100000 at most; ask for fewer"),
        ({"streams": "8,1000000"}, "1e\\+06 endless streams are 1e\\+06 requests"),
        ({"rate": "5,1e6", "seconds": 2.0}, "1e\\+06 requests a second are 2e\\+06 requests"),
        ({"rate": "1", "out": Path("/proc/results")}, "the folder '/proc/results' cannot be written to"),
        ({"rate": "1", "url": "http://localhost:8000", "backend": "compiled"}, "the server decides about backend"),
        ({"rate": "1", "connections": 2}, "--connections and --http are about servers"),
        ({"rate": "1", "http": True}, "--connections and --http are about servers"),
        ({"rate": "1", "url": "http://a", "http": True, "connections": 2}, "leave --connections out"),
        ({"rate": "1", "url": "http://a", "http": True, "live": 3.0}, "leave --live out"),
        ({"rate": "1", "texts": Path("/nowhere/texts")}, "--texts: '/nowhere/texts' cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load(**options)

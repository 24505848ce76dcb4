"""``megatalker bench`` as a user meets it."""

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from commands import megatalker, one_line
from kept import compiling
from megatalker.cli.bench.metrics import METRICS
from snippets import COMPARES, snippets
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_bench_compares_in_one_run_and_writes_json_and_plot(tmp_path: Path) -> None:
    """The command is the one in the quickstart."""
    (snippet,) = (one for one in snippets(ROOT / "docs" / "quickstart.md") if one.title == COMPARES)
    with compiling("demo"):
        done = megatalker(*shlex.split(snippet.text)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert list(report["results"]) == ["reference", "compiled"]
    assert set(METRICS) <= set(report["results"]["compiled"])
    for metric in METRICS:
        assert report["results"]["compiled"][metric]["median"] > 0
    for result in report["results"].values():
        assert result["tokens_per_s"]["median"] == pytest.approx(16 * result["frames_per_s"]["median"])
    assert (tmp_path / "bench" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_other_measurements_stand_behind_it_and_are_not_imported_to_be_listed(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["megatalker.benchmarks"]
    done = megatalker("bench", "--help", cwd=tmp_path)
    assert done.returncode == 0
    for name in declared:
        assert f" {name} " in done.stdout
    assert "--help says what it takes" not in done.stdout
    assert "megatalker_" not in done.stdout, "each says in words what it measures"
    assert "Odd texts at every face of the engine." in done.stdout


@pytest.mark.parametrize(
    "name", ["soak", "stream", "compiled", "codec", "endurance", "kernel", "peers", "engine-host", "schedule"]
)
def test_a_measurement_answers_for_its_own_options(tmp_path: Path, name: str) -> None:
    done = megatalker("bench", name, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"megatalker bench {name}" in done.stdout
    assert megatalker("bench", name, "--nonsense", cwd=tmp_path).returncode == 2


def test_an_unknown_measurement_is_refused_by_name(tmp_path: Path) -> None:
    done = megatalker("bench", "nonsense", cwd=tmp_path)
    assert done.returncode == 2
    assert "nonsense" in done.stderr


MISSING = [
    ("pipecat", "pipecat", "--sessions"),
    ("conversation", "pipecat", "--rounds"),
    ("soak", "psutil", "--streams"),
    ("callers", "websockets", "--callers"),
    ("ray", "ray", "--seconds"),
    ("ray", "websockets", "--seconds"),
    ("engine-host", "fastapi", "--pace"),
    ("word-times", "megatalker_demo_voice", "--texts"),
    ("conformance", "pytest", "alone."),
]
FORKS = """
import os, sys
import torch, megatalker.engine
from megatalker.cli.main import run
for missing, *arguments in (line.split() for line in sys.stdin.read().splitlines()):
    child = os.fork()
    if not child:
        for stream in (1, 2):
            os.dup2(os.open("-".join((missing, *arguments)), os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
        sys.modules[missing], sys.argv[1:] = None, ["bench", *arguments]
        run()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Run each command in a fork that cannot import one package; torch is imported once. Prints exit statuses."""


@pytest.fixture(scope="module")
def without_packages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int, str]]:
    """Exit status and output by missing package, name and options."""
    folder = tmp_path_factory.mktemp("missing")
    lines = [(missing, name, "--help") for name, missing, _ in MISSING] + [("pipecat", "pipecat")]
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        input="\n".join(map(" ".join, lines)),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PROCESS_S,
        check=True,
    )
    statuses = map(int, done.stdout.split())
    return {line: (status, (folder / "-".join(line)).read_text()) for line, status in zip(lines, statuses, strict=True)}


@pytest.mark.parametrize(("name", "missing", "option"), MISSING)
def test_a_measurement_tells_its_options_without_the_packages_it_wants(
    without_packages: dict[tuple[str, ...], tuple[int, str]], name: str, missing: str, option: str
) -> None:
    status, said = without_packages[missing, name, "--help"]
    assert status == 0, said
    assert option in said
    if (name, missing) != ("ray", "ray"):  # imported where it is needed
        assert f"not installed here: {missing}" in said


def test_a_measurement_whose_packages_are_missing_says_so(
    without_packages: dict[tuple[str, ...], tuple[int, str]],
) -> None:
    status, said = without_packages["pipecat", "pipecat"]
    assert status == 1
    assert "cannot run 'pipecat': pipecat" in one_line(said)

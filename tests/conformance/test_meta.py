"""The suite is tested: each deliberate mistake of ``mistakes`` is caught, and by the tests meant for it."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import groupby, islice
from pathlib import Path

import pytest

from megatalker.interfaces import CodecBackend, TalkerBackend
from mistakes import CATALOGUE, Mistake
from mistakes.table import TABLE, render
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parents[1] / "helpers"
Outcomes = dict[str, set[str]]


class Suite:
    """Runs the suite in a process of its own, outside the repository, with the broken plug-in installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        site = folder / "site"
        metadata = site / "mistakes-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mistakes\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text("[megatalker]\nmistakes = mistakes\n")
        self._path = os.pathsep.join([str(site), str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "megatalker_conformance.plugin",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",  # imported at the end of each run
            *arguments,
        ]
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": self._path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )

    def outcomes(self, *arguments: str) -> tuple[Outcomes, Outcomes]:
        """Names of the failed and of the passed tests, by the parameter that names the backend."""
        report = self.folder / "report.xml"
        done = self.run(*arguments, "--tb=no", "-q", f"--junitxml={report}")
        assert done.returncode in (0, 1), done.stdout + done.stderr
        failed, passed = defaultdict(set), defaultdict(set)
        for case in ET.parse(report).iter("testcase"):
            name, _, parameters = case.attrib["name"].rstrip("]").partition("[")
            bad = case.find("failure") is not None or case.find("error") is not None
            skipped = case.find("skipped") is not None
            for parameter in parameters.split("-"):
                if not skipped:
                    (failed if bad else passed)[parameter].add(name)
        return failed, passed


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("meta"))


PACKAGE = ("--pyargs", "megatalker_conformance")
SHORT = ("--frames=12", "--shorten=0")


SHARE = 30
"""Mistakes that one run of the suite shows: a run of more would take minutes on a busy machine."""


def _shares() -> Iterator[tuple[Mistake, ...]]:
    """Mistakes that are caught by the same tests stand together: their healthy backend runs each test once."""
    alike = sorted(CATALOGUE, key=lambda mistake: (mistake.options, sorted(mistake.caught_by)))
    for _, mistakes in groupby(alike, key=lambda mistake: mistake.options):
        yield from _batched(mistakes, SHARE)


def _batched(mistakes: Iterable[Mistake], size: int) -> Iterator[tuple[Mistake, ...]]:
    left = iter(mistakes)
    while batch := tuple(islice(left, size)):
        yield batch


def _flag(spec: TalkerBackend | CodecBackend) -> str:
    return "--backend" if isinstance(spec, TalkerBackend) else "--codec"


@pytest.mark.parametrize("mistakes", list(_shares()), ids=lambda share: f"{share[0].backend.name} and others")
def test_each_mistake_is_caught_by_the_tests_meant_for_it(suite: Suite, mistakes: tuple[Mistake, ...]) -> None:
    specs = {(_flag(spec), spec.name) for mistake in mistakes for spec in (mistake.backend, mistake.healthy)}
    chosen = [f"{flag}={name}" for flag, name in sorted(specs)]
    failed, passed = suite.outcomes(*PACKAGE, "-p", "mistakes.selection", *SHORT, *mistakes[0].options, *chosen)
    missed = {mistake.backend.name: mistake.caught_by - failed[mistake.backend.name] for mistake in mistakes}
    assert not {name: tests for name, tests in missed.items() if tests}
    for mistake in mistakes:
        healthy = mistake.healthy.name
        assert mistake.caught_by <= passed[healthy]
        assert not failed[healthy]


def test_the_table_of_mistakes_is_true() -> None:
    assert TABLE.read_text() == render(), "run `PYTHONPATH=tests/helpers python -m mistakes.table`"


def test_a_stranger_is_told_the_promise_the_shortest_schedule_and_the_codes(suite: Suite) -> None:
    """Two streams more than 64 positions apart in one call are enough, and one call is not needed before it."""
    done = suite.run(*PACKAGE, "--backend=far_apart", "-k", "full_house_do_not_disturb", "--conformance-seed=3")
    report = done.stdout.partition("broken promise: ")[2].partition("where the time went")[0]
    assert "a stream says the same whoever else is there" in report
    calls = re.findall(r"^ +\d+ (.*)$", report, re.MULTILINE)
    assert [call.split()[0] for call in calls] in (["prefill", "decode", "decode"], ["prefill"] * 2 + ["decode"] * 2)
    assert len(re.findall(r"[A-Z]\d*: \d+ prompt rows", report)) == 2
    assert "(--conformance-seed 3)" in report
    assert re.search(r"^expected: [A-Z]\d*, step 2: ", report, re.MULTILINE)
    assert re.search(r"^found:    [A-Z]\d*, step 2: ", report, re.MULTILINE)
    assert "contract: megatalker/interfaces.py, TalkerDecoder: " in report
    assert "seed: 3 (repeat with --conformance-seed)" in done.stdout


def test_an_unknown_backend_ends_the_run_with_an_error(suite: Suite) -> None:
    done = suite.run(*PACKAGE, "--backend", "nosuch")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "talker backend 'nosuch' is not installed; installed: " in done.stderr
    assert "healthy" in done.stderr


def test_an_unavailable_backend_ends_the_run_with_its_reason(suite: Suite) -> None:
    done = suite.run(*PACKAGE, "--backend", "not_here")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'not_here' cannot run here: it needs a device of another kind" in done.stderr


def test_the_header_says_what_is_judged_and_a_codec_run_leaves_talkers_out(suite: Suite) -> None:
    done = suite.run(*PACKAGE, "--codec", "healthy", "--codec", "healthy", "--collect-only")
    assert done.returncode == 0, done.stdout
    for words in (
        "megatalker ",
        "torch ",
        "transformers ",
        "qwen-tts 0.1.1",
        "device: cpu, dtype: float32",
        "checkpoint: tiny",
    ):
        assert words in done.stdout
    assert "talker backends: none; codecs: healthy\n" in done.stdout
    assert "test_any_schedule_equals_one_full_forward" in done.stdout
    assert "test_handles_are_never_used_again" not in done.stdout


def test_processes_can_share_the_suite_by_backends(request: pytest.FixtureRequest) -> None:
    """pytest-xdist names the group of a test in ``_nodeid``; a pytest that does not read it ignores groups silently."""
    node = copy(request.node)
    node._nodeid = "grouped"
    assert node.nodeid == "grouped", "the pins of pytest and pytest-xdist do not fit; see constraints/base.txt"


THEIR_CONFTEST = """
import pytest
from megatalker.engine import Engine

class BufferingEngine(Engine):
    def speak(self, text, **request):
        return Later(super().speak(text, **request))

class Later:
    def __init__(self, stream):
        self._stream, self._chunks = stream, None
    def __getattr__(self, name):
        return getattr(self._stream, name)
    def __iter__(self):
        return self
    def __next__(self):
        if self._chunks is None:
            self._chunks = list(self._stream)
        if not self._chunks:
            raise StopIteration
        return self._chunks.pop(0)

@pytest.fixture(scope="session")
def open_engine():
    return lambda settings, checkpoint, registry: BufferingEngine(settings, checkpoint, registry)

@pytest.fixture(scope="session")
def talker_backend(registry):
    return registry.talker("healthy")
"""


def test_overridden_fixtures_judge_another_backend_and_a_buffering_engine_is_caught(suite: Suite) -> None:
    theirs = suite.folder / "theirs"
    theirs.mkdir()
    (theirs / "conftest.py").write_text(THEIR_CONFTEST)
    (theirs / "test_theirs.py").write_text("from megatalker_conformance.test_engine_streaming import *\n")
    done = suite.run(str(theirs), "-k", "waits_for_a_later_one or gaps", "-q", "-rfp")
    assert "PASSED theirs/test_theirs.py::test_chunks_are_whole_frames_without_gaps" in done.stdout
    assert "FAILED theirs/test_theirs.py::test_no_chunk_waits_for_a_later_one" in done.stdout
    assert "1 failed, 1 passed" in done.stdout

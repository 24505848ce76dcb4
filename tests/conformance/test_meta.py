"""The suite is tested: each deliberate mistake of ``broken_backends`` is caught, and by the test meant for it."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pytest

from waiting import PROCESS_S

pytestmark = pytest.mark.slow

BROKEN_PLUGIN = Path(__file__).parents[1] / "helpers" / "broken_backends.py"
TALKERS = [
    ("off_by_one_frame", "test_greedy_codes_equal_the_official_generate"),
    ("off_by_one_frame", "test_each_frame_takes_the_text_row_of_its_own_step"),
    ("leaking", "test_nothing_of_a_stream_stays_in_its_row"),
    ("mixing", "test_streams_that_start_and_end_at_different_times_do_not_disturb_each_other"),
    ("wrong_rope_base", "test_float32_logits_have_float32_errors"),
    ("no_penalty", "test_repetition_penalty_counts_the_generated_code_0_history"),
    ("buffering", "test_each_frame_takes_the_text_row_of_its_own_step"),
    ("buffering", "test_no_call_does_the_work_of_several_frames"),
    ("hasty", "test_frames_waited_for_later_are_those_waited_for_at_once"),
    ("fallback", "test_no_other_decoder_does_the_work"),
    ("wrong_dtype", "test_float32_logits_have_float32_errors"),
    ("seedless", "test_equal_seeds_give_equal_codes_and_other_seeds_others"),
    ("hoarding", "test_released_rows_are_used_again"),
    ("swapping", "test_prompts_that_come_together_begin_as_each_alone"),
    ("borrowing", "test_inputs_are_copied"),
]
CODECS = [
    ("windowed", "test_equal_chunks_equal_one_full_forward"),
    ("forgetful", "test_equal_chunks_equal_one_full_forward"),
    ("delaying", "test_equal_chunks_equal_one_full_forward"),
    ("entangled", "test_a_copied_state_goes_its_own_way"),
]
INVARIANT_CODECS = [
    ("regrouping", "test_chunking_changes_no_bit"),
    ("regrouping", "test_neighbours_change_no_bit"),
    ("regrouping", "test_a_copied_state_goes_on_with_the_same_bits"),
]
Outcomes = dict[str, set[str]]


class Suite:
    """Runs the suite in a process of its own, outside the repository, with the broken plug-in installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        site = folder / "site"
        metadata = site / "broken_backends-0.dist-info"
        metadata.mkdir(parents=True)
        shutil.copy(BROKEN_PLUGIN, site)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-backends\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text("[megatalker]\nbroken = broken_backends\n")
        self._path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "megatalker_conformance.plugin",
            "-p",
            "no:cacheprovider",
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


def _judge(
    suite: Suite, option: str, mistakes: list[tuple[str, str]], healthy: str = "healthy"
) -> tuple[Outcomes, Outcomes]:
    """Each mistake by the tests meant for it, the healthy backend by all of these."""
    names = [f"{option}={name}" for name in (healthy, *dict(mistakes))]
    tests = " or ".join({test for _, test in mistakes})
    pairs = [f"({mistake} and {test})" for mistake, test in mistakes]
    return suite.outcomes(
        *PACKAGE, *names, "--frames=12", "--codec-frames=40", "-k", " or ".join([f"{healthy} and ({tests})", *pairs])
    )


@pytest.fixture(scope="module")
def talkers(suite: Suite) -> tuple[Outcomes, Outcomes]:
    return _judge(suite, "--backend", TALKERS)


@pytest.fixture(scope="module")
def codecs(suite: Suite) -> tuple[Outcomes, Outcomes]:
    return _judge(suite, "--codec", CODECS)


@pytest.fixture(scope="module")
def invariant_codecs(suite: Suite) -> tuple[Outcomes, Outcomes]:
    return _judge(suite, "--codec", INVARIANT_CODECS, "healthy_streaming")


@pytest.mark.parametrize(("mistake", "test"), TALKERS)
def test_each_mistake_of_a_talker_is_caught_by_the_test_meant_for_it(
    talkers: tuple[Outcomes, Outcomes], mistake: str, test: str
) -> None:
    failed, passed = talkers
    assert test in failed[mistake]
    assert test in passed["healthy"]
    assert not failed["healthy"]


@pytest.mark.parametrize(("mistake", "test"), CODECS)
def test_each_mistake_of_a_codec_is_caught_by_the_test_meant_for_it(
    codecs: tuple[Outcomes, Outcomes], mistake: str, test: str
) -> None:
    failed, passed = codecs
    assert test in failed[mistake]
    assert test in passed["healthy"]
    assert not failed["healthy"]


@pytest.mark.parametrize(("mistake", "test"), INVARIANT_CODECS)
def test_a_codec_whose_bits_vary_although_it_declares_otherwise_is_caught(
    invariant_codecs: tuple[Outcomes, Outcomes], mistake: str, test: str
) -> None:
    failed, passed = invariant_codecs
    assert test in failed[mistake]
    assert test in passed["healthy_streaming"]
    assert not failed["healthy_streaming"]


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
    assert "test_equal_chunks_equal_one_full_forward" in done.stdout
    assert "test_inputs_are_copied" not in done.stdout


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

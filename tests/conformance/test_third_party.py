"""A stranger's distribution: installed into a fresh environment, listed, and judged by the suite from elsewhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from snippets import snippets
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_backend"
TUTORIAL = EXAMPLE.parents[1] / "docs" / "writing-a-backend.md"
SUITE = (
    "-m",
    "pytest",
    "-p",
    "megatalker_conformance.plugin",
    "-p",
    "no:cacheprovider",
    "-q",
    "--tb=short",
    "--frames=8",
)
PACKAGE = ("--pyargs", "megatalker_conformance", "--backend=recompute", "-m", "not optional")
LONG = "runs_dry or memory_does_not_grow or a_thousand_that_come_and_go"
"""Tests that need a machine for themselves, or minutes of a busy one."""


class Environment:
    """A fresh virtual environment that also sees the packages of this one, so that nothing is downloaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    def install(self, source: Path) -> None:
        options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
        subprocess.run(
            [sys.executable, "-m", "pip", f"--python={self.python}", "install", *options, str(source)], check=True
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "backend"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("theirs"))
    environment.install(source)
    return environment


def test_it_is_listed_beside_the_built_in_backends(environment: Environment) -> None:
    done = environment.run("-c", "from megatalker.cli.main import run; run()", "backends", "--names")
    assert done.returncode == 0, done.stderr
    assert {"recompute", "reference"} <= set(done.stdout.split())


def test_it_passes_the_suite_where_nothing_is_set_up_for_plugins_that_the_suite_does_not_need(
    environment: Environment,
) -> None:
    pytest.importorskip("pytest_asyncio")
    done = environment.run(*SUITE, *PACKAGE, "-k", f"not ({LONG})")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "asyncio_default_fixture_loop_scope" not in done.stdout + done.stderr


def test_single_parts_of_the_suite_run_within_tests_of_ones_own(environment: Environment) -> None:
    """The code is the last snippet of the tutorial."""
    (conftest,) = [one for one in snippets(TUTORIAL) if one.title == "conftest.py"]
    (environment.folder / "conftest.py").write_text(conftest.text)
    (environment.folder / "test_mine.py").write_text("from megatalker_conformance.test_talker_honesty import *\n")
    done = environment.run(
        "-m", "pytest", "-p", "no:cacheprovider", "-q", "--frames=8", "test_mine.py", "-k", "specification"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_broken_variant_fails_the_suite(tmp_path: Path, source: Path) -> None:
    module = source / "megatalker_recompute.py"
    healthy = module.read_text()
    broken = healthy.replace(" + step.text.to(self._device, torch.float32)", "")
    assert broken != healthy
    module.write_text(broken)
    environment = Environment(tmp_path)
    environment.install(source)
    done = environment.run(*SUITE, *PACKAGE, "-k", "text_row_of_its_own_step")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert "test_each_frame_takes_the_text_row_of_its_own_step[recompute]" in done.stdout

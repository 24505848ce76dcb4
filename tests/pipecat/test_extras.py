"""Each command without its extra says in one sentence what is missing and what to install."""

import subprocess
import sys

import pytest

RUN_AGENT = "from megatalker_agent import run; run()"
RUN_MODULE = "import runpy; runpy.run_module('megatalker_pipecat.agent', run_name='__main__', alter_sys=True)"


def said_without(modules: list[str], program: str) -> list[str]:
    """Lines on the standard error of a process that fails, in which these modules cannot be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))"
    ended = subprocess.run([sys.executable, "-c", f"{blocked}; {program}"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.splitlines()


@pytest.mark.parametrize("missing", [["loguru", "pipecat"], ["pipecat"]])
def test_importing_the_adapter(missing: list[str]) -> None:
    said = said_without(missing, "import megatalker_pipecat")
    assert said[-1] == (
        f"ImportError: cannot import megatalker_pipecat: {missing[0]} is missing; pip install 'megatalker[pipecat]'"
    )
    assert not any("No module named" in line or "halted" in line for line in said)


@pytest.mark.parametrize(
    ("missing", "program", "names"),
    [
        (["loguru", "pipecat"], RUN_AGENT, "loguru, pipecat are missing"),
        pytest.param(["aiortc"], RUN_MODULE, "aiortc is missing", marks=pytest.mark.slow),
        (["aiortc", "uvicorn"], RUN_AGENT, "aiortc, uvicorn are missing"),
    ],
)
def test_starting_the_agent(missing: list[str], program: str, names: str) -> None:
    said = said_without(missing, program)
    assert said[-1] == f"error: cannot run the agent: {names}; pip install 'megatalker[agent]'"
    assert not any("Traceback" in line for line in said)

"""The ``megatalker-agent`` script. A package of its own: importing ``megatalker_pipecat`` fails without Pipecat."""

import runpy
import sys
from importlib.util import find_spec

from megatalker.engine.openmp import let_threads_sleep

NEEDED = ("loguru", "pipecat", "aiortc", "deepgram", "fastapi", "openai", "uvicorn")


def run() -> None:
    """Run the agent as the main module, because Pipecat's runner looks for ``bot`` there."""
    require_extra()
    let_threads_sleep()
    runpy.run_module("megatalker_pipecat.agent", run_name="__main__", alter_sys=True)


def require_extra() -> None:
    """End the process with one line if the extra ``agent`` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        sys.exit(f"error: cannot run the agent: {', '.join(missing)} {verb} missing; pip install 'megatalker[agent]'")

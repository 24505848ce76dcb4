"""The ``megatalker-agent`` script: ``python -m`` by another name, because Pipecat's runner reads the main module."""

import runpy


def run() -> None:
    """Run the package as the main module."""
    runpy.run_module("megatalker_pipecat.agent", run_name="__main__", alter_sys=True)

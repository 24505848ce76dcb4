"""The real agent in a process of its own, for tests."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waiting import HANG_S


@dataclass(frozen=True)
class Agent:
    """A running agent."""

    address: str
    """``host:port``."""
    process: "subprocess.Popen[bytes]"


@contextmanager
def agent_at_work(folder: Path, *arguments: str, environ: Mapping[str, str]) -> Iterator[Agent]:
    """Run ``python -m megatalker_pipecat.agent`` in ``folder``; yields when it answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "megatalker_pipecat.agent", "--host", "127.0.0.1", "--port", str(port), *arguments]
    log = folder / "agent.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=surroundings(environ), stdout=output, stderr=output)
    try:
        _wait_for(f"http://127.0.0.1:{port}/status", process, log)
        yield Agent(f"127.0.0.1:{port}", process)
    finally:
        process.terminate()
        try:
            process.wait(HANG_S)
        finally:
            process.kill()


def surroundings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without this machine's keys and settings, and with ``environ``."""
    ours = ("MEGATALKER_", "OPENAI_", "DEEPGRAM_", "PIPECAT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | dict(environ)


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while True:
        assert process.poll() is None, f"the agent ended:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"the agent does not answer:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.1)

"""The real agent in a process of its own, for tests."""

import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waiting import HANG_S

QUICK = {
    "MEGATALKER_BACKEND": "compiled",
    "MEGATALKER_BACKENDS__COMPILED__COMPILE": "off",
    "MEGATALKER_MAX_FRAMES": "60",
}
"""An agent that is soon there, and says little."""
_PORTS = itertools.count()


@dataclass(frozen=True)
class Agent:
    """A running agent."""

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"


@contextmanager
def agent_at_work(
    folder: Path, *arguments: str, environ: Mapping[str, str], port: int | None = None
) -> Iterator[Agent]:
    """Run ``python -m megatalker_pipecat.agent`` in ``folder``, by default on a free port; yields when it answers."""
    port = port or _free_port()
    command = [sys.executable, "-m", "megatalker_pipecat.agent", "--host", "127.0.0.1", "--port", str(port), *arguments]
    log = folder / "agent.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=surroundings(environ), stdout=output, stderr=output)
    try:
        _wait_for(f"http://127.0.0.1:{port}/status", process, log)
        yield Agent(port, process)
    finally:
        process.terminate()
        try:
            process.wait(HANG_S)
        finally:
            process.kill()


def _free_port() -> int:
    """Return a port that stays free until the agent takes it: the system never hands it out by itself."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 20_000 + 100 * worker + next(_PORTS) % 100
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


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
        except OSError:
            time.sleep(0.1)

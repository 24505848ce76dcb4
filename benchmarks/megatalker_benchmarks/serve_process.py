"""Run ``megatalker serve`` as a process on the loopback interface, and read what it holds from outside."""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from megatalker_benchmarks.ready_line import wait_until_ready

STOP_S = 60.0
ANSWER_S = 30.0
_COMMAND = "from megatalker.cli.main import run; run()"
_TASKS = re.compile(r"^megatalker_tasks (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServeProcess:
    """A server that is ready."""

    url: str
    process: psutil.Process
    """Its supervisor."""

    def tasks(self) -> int:
        """Return the number of tasks of its event loops, as it was within the last second."""
        found = _TASKS.search(httpx.get(f"{self.url}/metrics", timeout=ANSWER_S).text)
        if found is None:
            raise RuntimeError("the server's metrics have no megatalker_tasks")
        return int(float(found[1]))

    @property
    def engines(self) -> list[psutil.Process]:
        """Its engine processes."""
        return self._running("megatalker.serving.processes")

    @property
    def front_ends(self) -> list[psutil.Process]:
        """Its processes that hold connections."""
        return self._running("megatalker.serving.server.front_end")

    def is_ready(self) -> bool:
        """It answers, and can speak."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=ANSWER_S).is_success
        except httpx.TransportError:  # by a front end that has just ended
            return False

    def descriptors(self) -> int:
        """Return the number of open files and sockets, of all its processes."""
        return sum(int(one.num_fds()) for one in self._processes())

    def memory_mib(self) -> float:
        """Return resident memory in MiB, of all its processes."""
        return sum(float(one.memory_info().rss) for one in self._processes()) / 2**20

    def _running(self, module: str) -> list[psutil.Process]:
        found = []
        for child in self.process.children():
            with suppress(psutil.NoSuchProcess):  # a zombie is one
                found += [child] if module in child.cmdline() else []
        return found

    def _processes(self) -> list[psutil.Process]:
        """The supervisor, the front ends and the engines, without what those have started."""
        return [self.process, *self.process.children()]


@contextmanager
def serve_process(
    *options: str, settings: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[ServeProcess]:
    """Start ``megatalker serve`` on a free port, and stop it at the end. Every size is warmed up before it is ready.

    Args:
        *options: of the command.
        settings: of its ``megatalker.toml``.
        environment: on top of this process's.

    Raises:
        RuntimeError: it ended before it was ready; its log is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "megatalker.toml").write_text(settings, encoding="utf-8")
        command = [sys.executable, "-c", _COMMAND, "serve", "--port", "0", *options]
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "MEGATALKER_WARMUP": "all", **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                assert running.stderr is not None
                url = wait_until_ready(running.stderr)["url"]
                threading.Thread(target=_drop_log, args=(running,), daemon=True).start()
                yield ServeProcess(url, psutil.Process(running.pid))
            finally:
                running.terminate()
                try:
                    running.wait(STOP_S)
                finally:
                    running.kill()


def _drop_log(running: subprocess.Popen[str]) -> None:
    """Read the log: an unread pipe would stop the server."""
    assert running.stderr is not None
    for _ in running.stderr:
        pass

"""Run ``megatalker serve`` as a process on the loopback interface, and read what it holds from outside."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

from megatalker_benchmarks.ready_line import wait_until_ready

STOP_S = 60.0
ANSWER_S = 30.0
_COMMAND = """
import asyncio, signal
signal.signal(signal.SIGUSR1, lambda *_: print("tasks", len(asyncio.all_tasks()), flush=True))
from megatalker.cli.main import run
run()
"""
"""The command. On a signal it also prints the number of tasks of its event loop."""


@dataclass(frozen=True)
class ServeProcess:
    """A server that is ready."""

    url: str
    process: psutil.Process
    _answers: SimpleQueue[int] = field(default_factory=SimpleQueue)

    def tasks(self) -> int:
        """Return the number of tasks of its event loop."""
        self.process.send_signal(signal.SIGUSR1)
        try:
            return self._answers.get(timeout=ANSWER_S)
        except Empty:
            raise TimeoutError(f"the server's event loop did not answer for {ANSWER_S:g} s") from None

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return int(self.process.num_fds())

    def memory_mib(self) -> float:
        """Return resident memory in MiB."""
        return float(self.process.memory_info().rss) / 2**20


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
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                assert running.stderr is not None
                url = wait_until_ready(running.stderr)["url"]
                process = psutil.Process(running.pid)
                server = ServeProcess(url, process)
                for follow in (_drop_log, _read_answers):
                    threading.Thread(target=follow, args=(running, server._answers), daemon=True).start()
                yield server
            finally:
                running.terminate()
                try:
                    running.wait(STOP_S)
                finally:
                    running.kill()


def _drop_log(running: subprocess.Popen[str], _answers: "SimpleQueue[int]") -> None:
    """Read the log: an unread pipe would stop the server."""
    assert running.stderr is not None
    for _ in running.stderr:
        pass


def _read_answers(running: subprocess.Popen[str], answers: "SimpleQueue[int]") -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("tasks "):
            answers.put(int(line.removeprefix("tasks ")))

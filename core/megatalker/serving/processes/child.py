"""A process that this one has started, told what to do by its standard input, and that ends when this one does."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Self

from megatalker.engine.openmp import let_threads_sleep
from megatalker.serving.background import start_thread

END_S = 5.0
"""How long a process gets to end by itself."""


class Child:
    """A Python process that runs a module, which begins with :func:`told`. Methods may be called from any thread.

    Args:
        module: its name.
        start: what it is told.
        name: for logs.
        on_end: called in a thread of its own when the process is over.
        pass_fds: open files that it gets under the same numbers.
        environment: on top of this process's.
    """

    def __init__(
        self,
        module: str,
        start: object,
        name: str,
        on_end: Callable[[Self], object],
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        whole = os.environ | (environment or {})
        let_threads_sleep(whole)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            pass_fds=pass_fds,
            env=whole,
        )
        self.tell(pickle.dumps(sys.path) + pickle.dumps(start))
        start_thread(lambda: self._watch(on_end), f"megatalker-{name}")

    def tell(self, data: bytes) -> None:
        """Write this to its standard input; lost where it is gone."""
        assert self.process.stdin is not None
        with self._lock, suppress(BrokenPipeError, ValueError):  # ValueError: closed
            self.process.stdin.write(data)
            self.process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self.process.pid

    @property
    def how_it_ended(self) -> str:
        """In words."""
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def end(self) -> None:
        """Let the process end, and wait for that."""
        self.forget()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Close its standard input, which ends it."""
        assert self.process.stdin is not None
        with self._lock, suppress(BrokenPipeError):
            self.process.stdin.close()

    def _watch(self, on_end: Callable[[Self], object]) -> None:
        self.process.wait()
        on_end(self)

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


def told() -> tuple[Any, IO[bytes]]:
    """In the child: return what :class:`Child` was given as ``start``, and the rest of the standard input. It ends when
    the process that started this one closes it, or is gone.
    """
    given = sys.stdin.buffer
    try:
        sys.path[:] = pickle.load(given)
        return pickle.load(given), given
    except EOFError:  # it is gone already
        sys.exit(1)

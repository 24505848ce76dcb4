"""In the callers' process: one engine process, from its start to its end."""

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from megatalker.errors import MegatalkerError
from megatalker.serving.background import start_thread
from megatalker.serving.processes.host import Start
from megatalker.serving.processes.last_call import last_call
from megatalker.serving.processes.messages import EngineStatus, Order, pack_orders

logger = logging.getLogger(__name__)

END_S = 5.0
"""How long an engine process gets to end by itself."""


class EngineHandle:
    """One engine process. Methods may be called from any thread.

    Args:
        start: what it is told.
        place: which of the engines it is: a process that takes the place of a dead one has its number.
        on_death: called in a thread of its own when the process is over.
    """

    def __init__(
        self,
        start: Start,
        place: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        on_death: Callable[["EngineHandle"], None],
    ) -> None:
        self.number, self.place, self.device = start.engine, place, start.settings.device
        self.status: EngineStatus | None = None
        """Its latest report."""
        self.opened = False
        """It takes requests."""
        self.failure: MegatalkerError | None = None
        """Why it could not open."""
        self.given_up = False
        """It has no backend left, and is ended."""
        self.heard_at = time.monotonic()
        """When it last said anything."""
        self.begun = 0
        """Utterances that it was given since its latest report."""
        self._calls = start.calls
        self.max_streams, self.warm, self.silent = start.settings.max_streams, False, False
        self._lock = threading.RLock()  # a finalizer may send while this thread sends
        self._orders = context.socket(zmq.PUSH)
        self._orders.set_hwm(0)
        self._orders.setsockopt(zmq.LINGER, 0)
        self._orders.connect(start.orders)
        self.process = subprocess.Popen([sys.executable, "-m", "megatalker.serving.processes"], stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(start))
            self.process.stdin.flush()
        except BrokenPipeError:
            logger.debug("engine %d ended before it was told anything", self.number)
        start_thread(lambda: self._watch(on_death), f"megatalker-engine-{self.number}")

    def send(self, orders: Sequence[Order]) -> None:
        """Give it these orders; lost where it is gone."""
        with self._lock:
            if not self._orders.closed:
                self._orders.send(pack_orders(orders), copy=False)

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
        """The process is over: free the connections to it."""
        with self._lock:
            self._orders.close()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    @property
    def in_call(self) -> frozenset[int]:
        """Utterances of the call that it is in, or died in."""
        return last_call(self._calls)

    @property
    def able(self) -> bool:
        """It takes requests now."""
        return self.opened and not (self.silent or self.given_up) and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self.process.pid

    def _watch(self, on_death: Callable[["EngineHandle"], None]) -> None:
        self.process.wait()
        on_death(self)

    def __str__(self) -> str:
        return f"engine {self.place} on {self.device} (process {self.process.pid})"


def describe_end(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def address(folder: str, name: str) -> str:
    """Return an address in this folder for processes of this machine."""
    return f"ipc://{os.path.join(folder, name)}"  # noqa: PTH118 - an address, not a path


def log_levels() -> dict[str, int]:
    """Return what is logged here, so that an engine's process sends nothing that nobody wants."""
    loggers = {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if name.startswith("megatalker")
    }
    levels = {name: one.level for name, one in loggers.items() if isinstance(one, logging.Logger) and one.level}
    return {"": logging.root.level, "megatalker": logging.getLogger("megatalker").getEffectiveLevel(), **levels}

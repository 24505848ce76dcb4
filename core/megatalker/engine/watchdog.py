"""Notices a backend call that hangs, and puts another worker in the place of the one inside it."""

import logging
import threading
from queue import Empty, SimpleQueue

from megatalker.engine.commands import CommandQueue
from megatalker.engine.endings import end_everything
from megatalker.engine.failover import blame
from megatalker.engine.guarded_calls import CallRegister
from megatalker.engine.state import WorkerState
from megatalker.engine.worker import Worker, WorkerSettings
from megatalker.errors import BackendFaultError

logger = logging.getLogger(__name__)

LOOKS_PER_DEADLINE = 20  # not tuned: a poll period
"""So often the watchdog looks at a call before it is late. A pause of the whole process counts as two looks at most."""
MAX_PERIOD_S = 0.25  # not tuned: a poll period


def look_period_s(step_deadline_s: float) -> float:
    """Seconds between two looks."""
    return min(step_deadline_s / LOOKS_PER_DEADLINE, MAX_PERIOD_S)


class Watchdog(threading.Thread):
    """Looks at the call in progress many times per deadline. It cannot help while a hung call holds the GIL.

    Only time that it was there to see counts: its looks are the regular readings of the register's clock, which leaves
    out how long the process was stopped.
    """

    def __init__(self, state: WorkerState, commands: CommandQueue, register: CallRegister, own: WorkerSettings) -> None:
        super().__init__(name="megatalker-watchdog", daemon=True)
        self._state, self._commands, self._register, self._own = state, commands, register, own
        self._period_s = look_period_s(own.settings.step_deadline_s)
        self._ended: SimpleQueue[None] = SimpleQueue()
        """Tells the thread to end. Not an event, whose lock may not be taken twice: this thread may collect the engine
        while it waits, and the engine's finalizer ends it."""
        self.worker = self._new_worker()
        """The thread in charge."""

    def run(self) -> None:
        while True:
            try:
                return self._ended.get(timeout=self._period_s)
            except Empty:
                pass
            try:
                self._replace_hung_worker()
            except Exception as error:  # such as no memory for another thread: nobody may wait for ever
                self._fail(error)

    def stop(self) -> None:
        """End the thread."""
        self._ended.put(None)

    def abandon_worker(self) -> None:
        """The engine is closing and the worker hangs: nothing waits for it, and it frees the backends if it returns."""
        with self._register.lock:
            self._register.supersede()
            for role in (self._state.talker, self._state.codec):
                if role.loaded is not None:
                    self.worker.orphans.append(role.loaded)
                role.loaded = None

    def _replace_hung_worker(self) -> None:
        with self._register.lock:
            call, now = self._register.call, self._register.clock()
            if call is None or now < call.deadline:
                return
            reason = f"{call.what} did not return within {call.seconds:g} s"
            blame(self._state.utterances, call.role, call.name, reason, call.served)
            self._register.supersede()
            self.worker = self._new_worker()
            self.worker.start()

    def _fail(self, error: Exception) -> None:
        logger.exception("the engine's watchdog failed")
        with self._register.lock:
            self._register.supersede()
        failure = BackendFaultError(f"the engine failed: {type(error).__name__}; open a new engine")
        self._state.failure = failure
        end_everything(self._state, self._commands, failure)
        self._ended.put(None)

    def _new_worker(self) -> Worker:
        return Worker(self._state, self._commands, self._register, self._own)

"""Calls into backends: each has a deadline, and what goes wrong in one becomes a fault of that backend."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from megatalker.engine.backend_role import BackendRole, InstanceT, LoadedBackend
from megatalker.engine.costs import RunningClock
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError, InvalidRequestError, describe_error
from megatalker.plugins.checked import CheckedTalker

ResultT = TypeVar("ResultT")

COLD_FACTOR = 10  # not tuned: a bound of a call
"""A backend that was not warmed up may compile inside its first calls: they get this many deadlines."""
WARM_CALLS = 8  # not tuned: a bound of a call
"""Successful calls after which a backend that was never warmed up is taken to have compiled what it compiles."""
LOAD_DEADLINE_S = 900.0  # not tuned: a bound of a call
"""For loading and warming up, which compile kernels and read gigabytes."""

REQUEST_ERRORS = (InvalidRequestError, CapacityError)
"""Errors that blame the request, not the backend."""


class Superseded(BaseException):  # not an error: no handler of errors may keep it
    """Another worker has taken over."""


class Fault(Exception):  # noqa: N818 - internal signal, becomes a switch or a BackendFaultError
    """A backend failed and must be replaced; ``served`` are the utterances that the call was for."""

    def __init__(self, role: BackendRole[Any], name: str, reason: str, served: Sequence[Utterance] = ()) -> None:
        super().__init__(reason)
        self.role, self.name, self.reason, self.served = role, name, reason, served


class EmptyRoleError(Exception):
    """Internal: nothing is loaded where a backend is needed."""


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """One backend call, and when it will be late."""

    role: BackendRole[Any]
    name: str
    what: str
    served: Sequence[Utterance]
    """The utterances that it is for."""
    seconds: float
    deadline: float


class CallRegister:
    """The worker in charge, and the backend call it is in. Shared by workers and watchdog, guarded by ``lock``.

    Args:
        clock: seconds, monotonic.
        longest_gap_s: how long the clock may go unread before the process is taken to have been stopped.
    """

    def __init__(self, clock: Callable[[], float], longest_gap_s: float = math.inf) -> None:
        self.clock = RunningClock(clock, longest_gap_s)
        """For deadlines."""
        self.lock = threading.RLock()
        self.generation = 0
        self.call: CallInProgress | None = None
        self.on_call: Callable[[Sequence[Utterance]], None] = lambda _served: None
        """Told whom each call is for, and of its end with nobody."""

    def enter(
        self,
        generation: int,
        role: BackendRole[Any],
        name: str,
        what: str,
        seconds: float,
        served: Sequence[Utterance] = (),
    ) -> None:
        """The worker of ``generation`` begins a call; raises ``Superseded`` when it has been replaced."""
        with self.lock:
            self._require(generation)
            self.call = CallInProgress(role, name, what, served, seconds, self.clock() + seconds)
            self.on_call(served)

    def leave(self, generation: int) -> None:
        """The call has ended; raises ``Superseded`` when the worker has been replaced meanwhile."""
        with self.lock:
            self._require(generation)
            self.call = None
            self.on_call(())

    def supersede(self) -> None:
        """The worker in charge is replaced, whatever it is doing. Call with ``lock`` held."""
        self.call = None
        self.generation += 1

    def _require(self, generation: int) -> None:
        if generation != self.generation:
            raise Superseded


class GuardedCalls:
    """The calls of one worker. Every method raises ``Superseded`` when another worker has taken over meanwhile."""

    def __init__(self, register: CallRegister, talker: BackendRole[Any], step_deadline_s: float) -> None:
        self._register, self._talker, self._deadline_s = register, talker, step_deadline_s
        self._generation = register.generation
        self.last_used: LoadedBackend[Any] | None = None
        """The backend of the latest call: what an abandoned worker must close."""
        self.seconds = 0.0
        """Spent in calls until now."""

    @property
    def paused_s(self) -> float:
        """How long the process was stopped until now."""
        return self._register.clock.paused_s

    def step(
        self,
        role: BackendRole[InstanceT],
        what: str,
        call: Callable[[InstanceT], ResultT],
        served: Sequence[Utterance] = (),
        *,
        ends: bool = True,
    ) -> ResultT:
        """One step of a loaded backend.

        Args:
            role: whose backend.
            what: named in the fault.
            call: the call itself; must not touch any utterance, because it may be abandoned half-way.
            served: the utterances that it is for: either the backend or one of them is to blame when it fails.
            ends: the step is done then; otherwise a call that follows waits for its end.

        Raises:
            Fault: the call raised.
            InvalidRequestError, CapacityError: the request is to blame, or there is no room for it now.
        """
        loaded = role.loaded
        if loaded is None:
            raise EmptyRoleError
        seconds = self._deadline_s * (1 if loaded.warm else COLD_FACTOR)
        result = self._call(role, loaded, what, lambda: call(loaded.instance), seconds, served)
        if ends:
            loaded.calls += 1
            loaded.warm = loaded.warm or loaded.calls >= WARM_CALLS
        return result

    def warmup(self, role: BackendRole[InstanceT]) -> None:
        """Warm a loaded backend up; raises ``Fault``."""
        loaded = role.loaded
        if loaded is None:
            raise EmptyRoleError
        try:
            self._call(role, loaded, "warm-up", loaded.instance.warmup, LOAD_DEADLINE_S)
        except REQUEST_ERRORS as error:
            raise Fault(role, loaded.name, f"warm-up raised {describe_error(error)}") from error
        loaded.warm = True

    def prepare(self, talker: LoadedBackend[CheckedTalker]) -> str | None:
        """Ask a loaded talker to go on with what it prepares; raises whatever it raises."""
        self.last_used = talker
        return self._guarded(self._talker, talker.name, "preparing", talker.instance.prepare, LOAD_DEADLINE_S)

    def load(self, role: BackendRole[InstanceT], name: str, load: Callable[[], InstanceT]) -> InstanceT:
        """Load a backend; raises whatever its loader raises."""
        self.last_used = None
        return self._guarded(role, name, "loading", load, LOAD_DEADLINE_S)

    def device(self, what: str, call: Callable[[], ResultT]) -> ResultT:
        """Work of ours on the device; raises what it raises. A hang is the talker's: its kernels run there."""
        self.last_used = self._talker.loaded
        return self._guarded(self._talker, self._talker.last, what, call, self._deadline_s * COLD_FACTOR)

    def close(self, role: BackendRole[Any], loaded: LoadedBackend[Any]) -> None:
        """Free a backend, at most for one deadline; what it raises goes to the log."""
        self.last_used = None
        self._guarded(role, loaded.name, "closing", loaded.close, self._deadline_s)

    def _call(
        self,
        role: BackendRole[Any],
        loaded: LoadedBackend[Any],
        what: str,
        call: Callable[[], ResultT],
        seconds: float,
        served: Sequence[Utterance] = (),
    ) -> ResultT:
        self.last_used = loaded
        try:
            return self._guarded(role, loaded.name, what, call, seconds, served)
        except REQUEST_ERRORS:
            raise
        except Exception as error:  # a stranger's backend may fail in any way
            raise Fault(role, loaded.name, f"{what} raised {describe_error(error)}", served) from error

    def _guarded(
        self,
        role: BackendRole[Any],
        name: str,
        what: str,
        call: Callable[[], ResultT],
        seconds: float,
        served: Sequence[Utterance] = (),
    ) -> ResultT:
        """The result of ``call``. Even an attempt to end the process is an ordinary failure of the backend, and so is
        an error that cannot be printed: everything that is raised here can be.
        """
        self._register.enter(self._generation, role, name, what, seconds, served)
        began = self._register.clock()
        try:
            return call()
        except BaseException as error:
            if isinstance(error, Exception) and _can_be_printed(error):
                raise
            raise RuntimeError(f"{describe_error(error)} (raised in a backend)") from None
        finally:
            self.seconds += self._register.clock() - began
            self._register.leave(self._generation)


def _can_be_printed(error: BaseException | None) -> bool:
    """Whether the texts of the error and of what it came from can be read, as a traceback does."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        try:
            "".join((str(error), repr(error)))
        except BaseException:
            return False
        error = error.__cause__ or error.__context__
    return True

"""Calls into backends: watched, checked, and turned into faults when they go wrong."""

from collections.abc import Callable
from typing import Any, TypeVar

from megatalker.engine.board import Board
from megatalker.engine.slot import Loaded, Slot
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.plugins.checked import CheckedCodec, CheckedTalker

ResultT = TypeVar("ResultT")
InstanceT = TypeVar("InstanceT", CheckedTalker, CheckedCodec)

COLD_FACTOR = 10
"""A backend that was not warmed up may compile inside its first calls: they get this many deadlines."""
LOAD_DEADLINE_S = 900.0
"""For loading and warming up, which compile kernels and read gigabytes."""

REQUEST_ERRORS = (InvalidRequestError, CapacityError)
"""Errors that blame the request, not the backend."""


class Fault(Exception):  # noqa: N818 - internal signal, becomes a switch or a BackendFaultError
    """A backend failed and must be replaced."""

    def __init__(self, slot: Slot[Any], name: str, reason: str) -> None:
        super().__init__(reason)
        self.slot, self.name, self.reason = slot, name, reason


class EmptySlotError(Exception):
    """Internal: nothing is loaded where a backend is needed."""


class Calls:
    """The calls of one worker. Every method raises ``Superseded`` when another worker has taken over meanwhile."""

    def __init__(self, board: Board, generation: int, step_deadline_s: float) -> None:
        self._board, self._generation, self._deadline_s = board, generation, step_deadline_s
        self.last_used: Loaded[Any] | None = None
        """The backend of the latest call: what an abandoned worker must close."""

    def step(
        self,
        slot: Slot[InstanceT],
        what: str,
        call: Callable[[InstanceT], ResultT],
        check: Callable[[ResultT], str | None] = lambda _: None,
        *,
        ends: bool = True,
    ) -> ResultT:
        """One step of a loaded backend.

        Args:
            slot: whose backend.
            what: named in the fault.
            call: the call itself; must not touch any session, because it may be abandoned half-way.
            check: says what is wrong with the result, or ``None``.
            ends: the step is done then; otherwise a call that follows waits for its end.

        Raises:
            Fault: the call raised, or its result is malformed.
            InvalidRequestError, CapacityError: the backend blames the request.
        """
        loaded = slot.loaded
        if loaded is None:
            raise EmptySlotError
        seconds = self._deadline_s * (1 if loaded.warm else COLD_FACTOR)
        result = self._call(slot, loaded, what, lambda: call(loaded.instance), seconds)
        complaint = check(result)
        if complaint is not None:
            raise Fault(slot, loaded.name, complaint)
        if ends:
            loaded.note_call()
        return result

    def warmup(self, slot: Slot[InstanceT]) -> None:
        """Warm a loaded backend up; raises ``Fault``."""
        loaded = slot.loaded
        if loaded is None:
            raise EmptySlotError
        try:
            self._call(slot, loaded, "warm-up", loaded.instance.warmup, LOAD_DEADLINE_S)
        except REQUEST_ERRORS as error:
            raise Fault(slot, loaded.name, f"warm-up raised {_describe(error)}") from error
        loaded.warm = True

    def load(self, slot: Slot[InstanceT], name: str, load: Callable[[], InstanceT]) -> InstanceT:
        """Load a backend; raises whatever its loader raises."""
        self.last_used = None
        with self._board.watched(self._generation, slot, name, "loading", LOAD_DEADLINE_S):
            return _contained(load)

    def device(self, what: str, call: Callable[[], ResultT]) -> ResultT:
        """Work of ours on the device; raises what it raises. A hang is the talker's: its kernels run there."""
        slot = self._board.talker
        self.last_used = slot.loaded
        with self._board.watched(self._generation, slot, slot.last, what, self._deadline_s * COLD_FACTOR):
            return _contained(call)

    def close(self, slot: Slot[Any], loaded: Loaded[Any]) -> None:
        """Free a backend, at most for one deadline."""
        self.last_used = None
        with self._board.watched(self._generation, slot, loaded.name, "closing", self._deadline_s):
            loaded.close()

    def _call(
        self, slot: Slot[Any], loaded: Loaded[Any], what: str, call: Callable[[], ResultT], seconds: float
    ) -> ResultT:
        self.last_used = loaded
        with self._board.watched(self._generation, slot, loaded.name, what, seconds):
            try:
                return _contained(call)
            except REQUEST_ERRORS:
                raise
            except Exception as error:  # a stranger's backend may fail in any way
                raise Fault(slot, loaded.name, f"{what} raised {_describe(error)}") from error


def _contained(call: Callable[[], ResultT]) -> ResultT:
    """The result of ``call``; even an attempt to end the process is an ordinary failure of the backend."""
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__} in a backend: {error}") from error


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

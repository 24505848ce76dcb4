"""What the worker, the watchdog and the callers share.

Ownership: sessions, slots and counters belong to the worker of the current *generation*, which touches them between
backend calls only. During a backend call the watchdog may declare the call hung: under the lock it raises the
generation and starts another worker. The abandoned thread learns of it when its call returns at last, and touches
nothing any more. Callers talk to the worker through ``commands`` and to consumers through each session's mailbox.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from megatalker.engine.commands import Command, Lend
from megatalker.engine.segment import Segment
from megatalker.engine.session import Session
from megatalker.engine.slot import Loaded, Slot
from megatalker.errors import BackendFaultError
from megatalker.interfaces import Frame, StreamHandle
from megatalker.plugins.checked import CheckedCodec, CheckedTalker

logger = logging.getLogger(__name__)


class Superseded(BaseException):  # not an error: no handler of errors may keep it
    """Another worker has taken over."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A backend call in progress."""

    slot: Slot[Any]
    name: str
    what: str
    seconds: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A frame of some streams that the loaded talker was asked to begin, and that nobody has taken."""

    shares: Sequence[tuple[Session, Segment]]
    finish: Callable[[], list[Frame]]


@dataclass(slots=True)
class Counters:
    """See :class:`megatalker.engine.facts.EngineMetrics`."""

    streams: int = 0
    frames: int = 0
    chunks: int = 0
    switches: int = 0
    cancelled: int = 0
    errors: int = 0


@dataclass(eq=False)
class Board:
    """One engine's shared state; see the module."""

    talker: Slot[CheckedTalker]
    codec: Slot[CheckedCodec]
    clock: Callable[[], float]
    commands: SimpleQueue[Command] = field(default_factory=SimpleQueue)
    opened: "Future[None]" = field(default_factory=Future)
    """Done when both slots are filled for the first time; carries the error when that fails."""
    sessions: list[Session] = field(default_factory=list)
    """Unfinished, oldest first."""
    to_release: list[StreamHandle] = field(default_factory=list)
    """Streams of the loaded talker that nobody needs any more."""
    begun: Begun | None = None
    """To be taken before the loaded talker is asked anything else."""
    row_limit: int | None = None
    """Streams the loaded talker turned out to hold, where that is less than it promised."""
    counters: Counters = field(default_factory=Counters)
    warmups: "list[Future[None]]" = field(default_factory=list)
    """Callers that wait until both backends are warm."""
    loans: list[Lend] = field(default_factory=list)
    """Callers that wait for the backends themselves."""
    dead: BackendFaultError | None = None
    """No backend is left: every request fails with this."""
    closing: bool = False
    load: int = 0
    """Requests accepted and not finished. Guarded by ``lock``."""
    worker: threading.Thread | None = None
    """The thread of this generation."""
    generation: int = 0
    watch: Watch | None = None
    orphans: list[Loaded[Any]] = field(default_factory=list)
    """Backends that nobody closed because the worker hung."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def watched(self, generation: int, slot: Slot[Any], name: str, what: str, seconds: float) -> Iterator[None]:
        """Wraps one backend call of the worker of ``generation``.

        Raises:
            Superseded: before or after the call, when that worker has been replaced; the block's own error is lost.
        """
        with self.lock:
            self._require(generation)
            self.watch = Watch(slot, name, what, seconds, self.clock() + seconds)
        try:
            yield
        finally:
            with self.lock:
                self._require(generation)
                self.watch = None

    def supersede_hung(self, start_worker: Callable[[], None]) -> None:
        """If the call in progress has exceeded its deadline: give its backend up and start another worker."""
        with self.lock:
            watch = self.watch
            if watch is None or self.clock() < watch.deadline:
                return
            self.give_up(watch.slot, watch.name, f"{watch.what} did not return within {watch.seconds:g} s")
            self.watch = None
            self.generation += 1
            start_worker()

    def abandon(self) -> None:
        """The engine is closing and the worker hangs: nothing waits for it, and it frees the backends if it returns."""
        with self.lock:
            self.watch = None
            self.generation += 1
            self.orphans = [slot.loaded for slot in (self.talker, self.codec) if slot.loaded is not None]
            self.talker.loaded = self.codec.loaded = None

    def give_up(self, slot: Slot[Any], name: str, reason: str) -> None:
        """A backend failed: it serves no more."""
        logger.warning("%s backend %s is faulty and is used no more: %s", slot.kind, name, reason)
        slot.give_up(name, reason)

    def _require(self, generation: int) -> None:
        if generation != self.generation:
            raise Superseded

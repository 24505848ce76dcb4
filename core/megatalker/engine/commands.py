"""Commands of callers to the worker, the queue that carries them, and an utterance as its stream sees it."""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from megatalker.engine.admission import AdmissionLimits, gave_place, gives_place, refusal
from megatalker.engine.costs import Throughput
from megatalker.engine.speech.chunks import ChunkQueue, Progress
from megatalker.engine.utterance import Utterance
from megatalker.errors import EngineClosedError
from megatalker.plugins.checked import CheckedCodec, CheckedTalker


@dataclass(frozen=True, slots=True)
class Submit:
    """A new utterance."""

    utterance: Utterance


@dataclass(frozen=True, slots=True)
class Feed:
    """More text of an utterance."""

    utterance: Utterance
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class FinishText:
    """The utterance's text is complete."""

    utterance: Utterance


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody listens any more; or, with an error, somebody else needs its place."""

    utterance: Utterance
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Warmup:
    """Warm both backends up."""

    done: "Future[None]"


@dataclass(frozen=True, slots=True)
class Lend:
    """Lend both backends to the caller until ``returned`` is set."""

    lent: "Future[tuple[CheckedTalker, CheckedCodec]]"
    returned: threading.Event


@dataclass(frozen=True, slots=True)
class Wake:
    """A consumer has taken what its stream was waiting for it to take."""


@dataclass(frozen=True, slots=True)
class Close:
    """End all streams, free both backends, end the thread."""


Command = Submit | Feed | FinishText | Cancel | Warmup | Lend | Wake | Close


class CommandQueue:
    """Carries commands from any thread to the worker, and knows the requests that are not finished."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Command] = SimpleQueue()
        """Putting a command here is safe anywhere, even in a finalizer; what needs the engine open goes through
        :meth:`put` and :meth:`submit`."""
        self.closing = False
        self.submitted = 0
        """Requests accepted since the engine was opened."""
        self._opened: set[Utterance] = set()
        self._lock = threading.RLock()  # a finalizer may close the engine while this thread holds it

    def put(self, command: Command) -> None:
        """Queue a command; closing comes after it, or is noticed here.

        Raises:
            EngineClosedError: the engine is closed.
        """
        with self._lock:
            self._require_open()
            self.queue.put(command)

    def submit(self, utterance: Utterance, limits: AdmissionLimits, throughput: Throughput) -> None:
        """Queue a new utterance. One of another owner may have to end for it. What goes on from another engine was let
        in there.

        Raises:
            CapacityError: the limits do not allow it now.
            EngineClosedError: the engine is closed.
        """
        with self._lock:
            self._require_open()
            if not utterance.begun:
                self._make_room(utterance, limits, throughput)
            self._opened.add(utterance)
            self.submitted += 1
            self.queue.put(Submit(utterance))

    def _make_room(self, utterance: Utterance, limits: AdmissionLimits, throughput: Throughput) -> None:
        leaver = gives_place(self._opened, utterance, limits)
        now = utterance.progress.requested_at
        refused = refusal(self._opened - {leaver}, utterance, limits, throughput, now)
        if refused is not None:
            raise refused
        if leaver is not None:
            self._opened.discard(leaver)
            self.queue.put(Cancel(leaver, gave_place(limits)))

    def finished(self, utterance: Utterance) -> None:
        """A request is finished."""
        with self._lock:
            self._opened.discard(utterance)

    def unfinished(self) -> list[Utterance]:
        """Requests accepted and not finished."""
        with self._lock:
            return list(self._opened)

    def close(self) -> None:
        """Nothing is accepted any more; the worker is told to end everything."""
        with self._lock:
            self.closing = True
            self.queue.put(Close())

    def _require_open(self) -> None:
        if self.closing:
            raise EngineClosedError("this engine is closed; open a new one")


class UtteranceLink(Protocol):
    """An utterance of one engine, as its stream sees it."""

    @property
    def chunks(self) -> ChunkQueue:
        """Audio."""

    @property
    def progress(self) -> Progress:
        """Facts, which the engine writes."""

    def feed(self, text: str) -> None:
        """More text; raises ``EngineClosedError`` where nobody will speak it."""

    def finish_text(self) -> None:
        """The text is complete; raises as :meth:`feed`."""

    def cancel(self) -> None:
        """Nobody listens any more. Safe in finalizers, and where the utterance has ended."""


@dataclass(frozen=True, slots=True)
class LocalLink:
    """To the worker of this process."""

    utterance: Utterance
    commands: CommandQueue

    @property
    def chunks(self) -> ChunkQueue:
        return self.utterance.chunks

    @property
    def progress(self) -> Progress:
        return self.utterance.progress

    def feed(self, text: str) -> None:
        self.commands.put(Feed(self.utterance, text, time.monotonic()))

    def finish_text(self) -> None:
        self.commands.put(FinishText(self.utterance))

    def cancel(self) -> None:
        self.commands.queue.put(Cancel(self.utterance))

"""What callers ask of the worker. Putting one into the queue is safe anywhere, even in a finalizer."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from megatalker.engine.session import Session
from megatalker.plugins.checked import CheckedCodec, CheckedTalker


@dataclass(frozen=True, slots=True)
class Submit:
    """A new utterance."""

    session: Session


@dataclass(frozen=True, slots=True)
class Feed:
    """More text of an utterance."""

    session: Session
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class FinishText:
    """The utterance's text is complete."""

    session: Session


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody listens any more."""

    session: Session


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
class Look:
    """A consumer has taken what its stream was waiting for it to take."""


@dataclass(frozen=True, slots=True)
class Close:
    """End all streams, free both backends, end the thread."""


Command = Submit | Feed | FinishText | Cancel | Warmup | Lend | Look | Close

"""Messages besides speech: between the supervisor of engine processes, the engines, and their clients.

Everything is a PUSH to the one PULL socket that each process has, over ``ipc://``, in msgpack. Nothing here needs
torch, so that a supervisor starts its processes at once.
"""

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec import Struct

from megatalker.errors import MegatalkerError, describe_error, named_error
from megatalker.settings import Settings

Context = zmq.Context[zmq.Socket[bytes]]
LONGEST_GAP_S = 0.25
"""Processes are watched more often than this; what is longer was a pause of the machine."""


class Failure(Struct, array_like=True, frozen=True):
    """An error on its way to another process."""

    kind: str
    text: str
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the message for this error."""
        if not isinstance(error, MegatalkerError):
            return cls(MegatalkerError.__name__, describe_error(error))
        return cls(type(error).__name__, str(error), getattr(error, "retry_after_s", None))

    def exception(self) -> MegatalkerError:
        """Return the error to raise in this process."""
        return named_error(self.kind, self.text, self.retry_after_s)


# ---- from an engine to its supervisor


class EngineOpened(Struct, array_like=True, frozen=True, tag=True):
    """The engine has loaded its backends, or cannot."""

    engine: int
    """Number of the process, which no other has."""
    failure: Failure | None


class WarmedUp(Struct, array_like=True, frozen=True, tag=True):
    """The end of a warm-up."""

    engine: int
    failure: Failure | None


class Heartbeat(Struct, array_like=True, frozen=True, tag=True):
    """The engine is there."""

    engine: int
    failure: Failure | None
    """Why it refuses every request."""
    status: bytes
    """The message that its clients get, :class:`~megatalker.serving.processes.messages.EngineStatus`."""


class Logged(Struct, array_like=True, frozen=True, tag=True):
    """A line for the log, with its traceback."""

    engine: int
    logger: str
    level: int
    text: str


# ---- from a client to the supervisor


class ClientHello(Struct, array_like=True, frozen=True, tag=True):
    """A client is there, and wants engines."""

    client: int
    """Its number, which no other has."""
    reports: str
    """The address where it hears of them, and from them."""


class WarmUpWanted(Struct, array_like=True, frozen=True, tag=True):
    """The engines are to be warmed up; :class:`EnginesWarm` answers."""

    client: int


class ClientReady(Struct, array_like=True, frozen=True, tag=True):
    """The process of this client serves, and still does: it says so every second."""

    client: int
    what: str
    """Checkpoint, backend and codec, in words."""


class ClientFailed(Struct, array_like=True, frozen=True, tag=True):
    """The process of this client cannot serve, and ends."""

    client: int
    failure: Failure


ToSupervisor = EngineOpened | WarmedUp | Heartbeat | Logged | ClientHello | WarmUpWanted | ClientReady | ClientFailed


# ---- from the supervisor to clients


class EngineState(Struct, array_like=True, frozen=True, tag=True):
    """An engine that there is."""

    engine: int
    place: int
    """Its number among the engines that there are at a time; a process that replaces a dead one has that one's."""
    device: str
    pid: int
    orders: str
    """The address where it takes orders."""
    calls: str
    """The file that tells in which call it died."""
    max_streams: int
    opened: bool
    warm: bool


class EngineGone(Struct, array_like=True, frozen=True, tag=True):
    """An engine is no more."""

    engine: int
    status: bytes | None
    """Its last :class:`Heartbeat`'s, whose counters still count."""


class EnginesOpened(Struct, array_like=True, frozen=True, tag=True):
    """All engines have loaded their backends, or one cannot."""

    failure: Failure | None


class EnginesWarm(Struct, array_like=True, frozen=True, tag=True):
    """All engines are warm, or one cannot be warmed up."""

    failure: Failure | None


class EnginesFailed(Struct, array_like=True, frozen=True, tag=True):
    """No engine can be kept up."""

    failure: Failure


ToClient = EngineState | EngineGone | EnginesOpened | EnginesWarm | EnginesFailed


# ---- from both to an engine


class Attach(Struct, array_like=True, frozen=True, tag=True):
    """A client is there."""

    client: int
    reports: str


class Detach(Struct, array_like=True, frozen=True, tag=True):
    """A client is gone, and nobody listens to its utterances."""

    client: int


class WarmUpOrder(Struct, array_like=True, frozen=True, tag=True):
    """Warm both backends up; a :class:`WarmedUp` answers."""


# ---- on the wire


_encoder = msgspec.msgpack.Encoder()
_to_supervisor: msgspec.msgpack.Decoder[ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor)


def pack(message: Struct | Sequence[Struct]) -> bytes:
    """Return a message of this module, or the orders of one, for the wire."""
    return _encoder.encode(message)


def unpack_for_supervisor(data: bytes) -> ToSupervisor:
    """Return a message to the supervisor."""
    return _to_supervisor.decode(data)


def address(folder: str | Path, name: str) -> str:
    """Return an address in this folder for processes of this machine."""
    return f"ipc://{os.path.join(folder, name)}"  # noqa: PTH118 - an address, not a path


def private_folder() -> str:
    """Make a folder for sockets and counters that nobody else may look into. In memory where the system has a place for
    that: a process that writes to a mapped file on a full disk is killed.
    """
    memory = "/dev/shm"
    return tempfile.mkdtemp(prefix="megatalker-", dir=memory if os.access(memory, os.W_OK) else None)


def receiver(context: Context, at: str) -> "zmq.Socket[bytes]":
    """Return the socket where a process takes messages."""
    socket = context.socket(zmq.PULL)
    socket.set_hwm(0)
    socket.bind(at)
    return socket


class Sender:
    """Sends messages to one address. Thread-safe; a socket is not. What is sent to nobody is lost."""

    def __init__(self, context: Context, to: str) -> None:
        self._socket, self._lock = context.socket(zmq.PUSH), threading.RLock()  # a finalizer may send while it sends
        self._socket.set_hwm(0)
        self._socket.connect(to)
        zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)  # opens what large messages need, and keeps it, at start

    def __call__(self, message: bytes) -> None:
        with self._lock:
            if not self._socket.closed:
                self._socket.send(message, copy=False)

    def close(self, linger_ms: int = 0) -> None:
        """Send nothing more; wait this long for what has not been sent, -1 as long as it takes."""
        with self._lock:
            self._socket.close(linger_ms)


# ---- what a process is told at its start


@dataclass(frozen=True)
class EngineStart:
    """All that an engine process is told at its start."""

    engine: int
    settings: Settings
    folder: Path
    name: str
    """The checkpoint's."""
    orders: str
    """The address where it takes orders."""
    supervisor: str
    """The address of its supervisor."""
    registry: Callable[[], Any] | None
    """Makes the registry of backends; a function of a module. ``None``: the installed ones."""
    calls: str
    """The file that tells in which call it died."""
    log_levels: dict[str, int]
    """Levels of the loggers in the process that started it."""


def log_levels() -> dict[str, int]:
    """Return what is logged here, so that another process sends nothing that nobody wants."""
    loggers = {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if name.startswith("megatalker")
    }
    levels = {name: one.level for name, one in loggers.items() if isinstance(one, logging.Logger) and one.level}
    return {"": logging.root.level, "megatalker": logging.getLogger("megatalker").getEffectiveLevel(), **levels}


def set_log_levels(levels: dict[str, int]) -> None:
    """Log here what another process logs."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)

"""The engine's process: opens an engine, obeys orders, and ends when the process that started it does.

``python -m megatalker.serving.processes`` reads two pickles from its standard input, ``sys.path`` and a
:class:`Start`; the input stays open for as long as the engine is wanted.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zmq

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.chunks import Progress
from megatalker.engine.commands import Cancel, Feed, FinishText, Wake
from megatalker.engine.interpreter import spare_what_is_loaded, switch_threads_often
from megatalker.engine.text_segmenter import TextSegmenter
from megatalker.engine.utterance import Utterance
from megatalker.errors import MegatalkerError
from megatalker.plugins import BackendRegistry
from megatalker.serving.background import start_thread
from megatalker.serving.processes.last_call import LastCall
from megatalker.serving.processes.messages import (
    Begin,
    Ended,
    EndText,
    EngineOpened,
    EngineStatus,
    Failure,
    FeedText,
    Logged,
    Order,
    StopSpeech,
    Taken,
    WarmedUp,
    WarmUpOrder,
    pack_report,
    unpack_orders,
)
from megatalker.serving.processes.outlet import Outbox, Outlet
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

BUSY_STATUS_S = 0.02
"""Time between two reports of what an engine can take, while streams are open."""
IDLE_STATUS_S = 0.5
"""The same without streams."""


@dataclass(frozen=True)
class Start:
    """All that an engine process is told at its start."""

    engine: int
    settings: Settings
    folder: Path
    name: str
    """The checkpoint's."""
    orders: str
    """The address where it takes orders."""
    reports: str
    """The address where it reports."""
    registry: Callable[[], BackendRegistry]
    calls: Path
    """The file that tells in which call it died."""
    log_levels: dict[str, int]
    """Levels of the loggers in the process that started it."""


class Host:
    """Obeys the orders of one process of callers."""

    def __init__(self, start: Start, engine: Engine, send: Callable[[bytes], None]) -> None:
        self._number, self._engine, self._send = start.engine, engine, send
        self._outbox = Outbox(start.engine, send)
        self._utterances: dict[int, tuple[Utterance, Outlet]] = {}
        self._wake = lambda: engine.post(Wake())

    def obey(self, order: Order) -> None:
        """Do what a caller asks."""
        match order:
            case Begin():
                self._begin(order)
                return
            case WarmUpOrder():
                start_thread(self._warm_up, "megatalker-warmup")
                return
        utterance, outlet = self._utterances.get(order.id, (None, None))
        if utterance is None or outlet is None:  # it has ended
            return
        match order:
            case FeedText(text=text, at=at):
                self._engine.post(Feed(utterance, text, at))
            case EndText():
                self._engine.post(FinishText(utterance))
            case Taken(frames=frames):
                outlet.taken(frames)
            case StopSpeech():
                self._engine.post(Cancel(utterance))

    def report(self) -> None:
        """Say what this engine can take."""
        engine, failure = self._engine, self._engine.failure
        status = EngineStatus(
            engine=self._number,
            limits=engine.limits,
            metrics=engine.metrics(),
            wait_s=engine.expected_wait_s,
            failure=None if failure is None else Failure.of(failure),
        )
        self._send(pack_report(status))

    @property
    def busy(self) -> bool:
        """Utterances are open."""
        return bool(self._utterances)

    def _begin(self, order: Begin) -> None:
        engine, plan = self._engine, order.request.plan
        made: list[Outlet] = []

        def outlet(progress: Progress) -> Outlet:
            most_s, end = engine.settings.max_untaken_s, partial(self._utterances.pop, order.id, None)
            made.append(Outlet(order.id, progress, self._outbox, order.word_times, most_s, self._wake, end))
            return made[0]

        try:
            text = TextSegmenter(
                engine.checkpoint.tokenizer, engine.settings.max_segment_chars, plan.ids_needed, clean=order.clean
            )
            for segment in order.segments or ():
                text.add(segment.text, segment.ids)
            if order.segments is not None:
                text.finish()
            utterance = engine.begin(
                order.owner, order.request, text, after=order.after, chunks=outlet, distrusted=order.suspect
            )
            self._utterances[order.id] = utterance, made[0]
            if made[0].reason is not None:  # it has ended meanwhile
                del self._utterances[order.id]
        except Exception as error:  # whatever it is, it concerns this request alone
            self._outbox.end(Ended(order.id, "error", Failure.of(error), 0, 0, 0, []))

    def _warm_up(self) -> None:
        failure = None
        try:
            self._engine.warmup()
            spare_what_is_loaded()
        except MegatalkerError as error:
            failure = Failure.of(error)
        self.report()
        self._send(pack_report(WarmedUp(self._number, failure)))


class _ForwardedLog(logging.Handler):
    """Lets the callers' process write what is logged here, in its own form."""

    def __init__(self, engine: int, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._engine, self._send = engine, send

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._send(pack_report(Logged(self._engine, record.name, record.levelno, text)))


class _Sender:
    """Sends to the callers' process. Thread-safe; a socket is not."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self._socket, self._lock = context.socket(zmq.PUSH), threading.Lock()
        self._socket.set_hwm(0)
        self._socket.connect(address)

    def close(self) -> None:
        """Send nothing more."""
        self._socket.close()

    def __call__(self, message: bytes) -> None:
        with self._lock:
            self._socket.send(message, copy=False)


def run(start: Start) -> None:
    """Be an engine process until it is told to end; its caller's process ends it by ending itself, too."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    orders = context.socket(zmq.PULL)
    orders.set_hwm(0)
    orders.bind(start.orders)
    send = _Sender(context, start.reports)
    logging.getLogger().addHandler(_ForwardedLog(start.engine, send))
    try:
        checkpoint = Checkpoint(start.folder, start.name)
        engine = Engine.open(start.settings, checkpoint=checkpoint, registry=start.registry())
    except MegatalkerError as error:
        send(pack_report(EngineOpened(start.engine, Failure.of(error))))
        send.close()
        orders.close()
        return
    with engine:
        switch_threads_often()
        engine.watch_calls(LastCall(start.calls))
        host = Host(start, engine, send)
        host.report()
        send(pack_report(EngineOpened(start.engine, None)))
        _serve(orders, host)


def _serve(orders: "zmq.Socket[bytes]", host: Host) -> None:
    report_at = 0.0
    while True:
        if orders.poll(int(1e3 * (BUSY_STATUS_S if host.busy else IDLE_STATUS_S))):
            for order in unpack_orders(orders.recv()):
                host.obey(order)
        if time.monotonic() >= report_at:
            host.report()
            report_at = time.monotonic() + (BUSY_STATUS_S if host.busy else IDLE_STATUS_S)


def _end_with_caller() -> None:
    """Wait for the end of standard input: the other process has closed it, or is gone."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    logger.info("the process that started this engine is done with it")
    os._exit(0)


def main() -> None:
    """Run the process; see the module."""
    for sent_to_all in (signal.SIGINT, signal.SIGTERM):  # by a terminal, or systemd: the caller's process decides
        signal.signal(sent_to_all, signal.SIG_IGN)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    start: Start = pickle.load(sys.stdin.buffer)
    for name, level in start.log_levels.items():
        logging.getLogger(name).setLevel(level)
    start_thread(_end_with_caller, "megatalker-lifeline")
    run(start)
    zmq.Context.instance().term()  # sends what has not been sent
    os._exit(1)

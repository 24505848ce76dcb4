"""The engine's process: opens an engine, obeys orders, and ends when the process that started it does."""

import logging
import os
import signal
import time
from functools import partial
from typing import IO

import zmq

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.commands import Cancel, Feed, FinishText, Wake
from megatalker.engine.interpreter import collect_rarely, spare_what_is_loaded, switch_threads_often
from megatalker.engine.speech.chunks import Progress
from megatalker.engine.speech.text_segmenter import TextSegmenter
from megatalker.engine.utterance import Utterance
from megatalker.errors import MegatalkerError
from megatalker.plugins import BackendRegistry
from megatalker.serving.background import start_thread
from megatalker.serving.processes.child import told
from megatalker.serving.processes.control import (
    Attach,
    Context,
    Detach,
    EngineOpened,
    EngineStart,
    Failure,
    Heartbeat,
    Logged,
    Sender,
    WarmedUp,
    WarmUpOrder,
    pack,
    receiver,
    set_log_levels,
)
from megatalker.serving.processes.last_call import LastCall
from megatalker.serving.processes.messages import (
    MOST_UTTERANCES,
    Begin,
    Ended,
    EndText,
    EngineStatus,
    FeedText,
    Order,
    StopSpeech,
    Taken,
    pack_report,
    unpack_orders,
)
from megatalker.serving.processes.outlet import Outbox, Outlet

BUSY_STATUS_S = 0.02
"""Time between two reports of what an engine can take, while streams are open."""
IDLE_STATUS_S = 0.5
"""The same without streams."""
SWITCH_S = 0.0001  # measured: docs/notes/throughput.md#what-the-host-takes
"""How long an engine waits for Python's lock. Nobody listens in this process, and what its other threads do for new
requests can wait, while an engine that waits for them at each call of torch makes gaps.
"""


class Clients:
    """The clients of an engine: each hears of its own utterances, and all of the engine's state."""

    def __init__(self, engine: int, context: Context) -> None:
        self._engine, self._context = engine, context
        self._senders: dict[int, tuple[Sender, Outbox]] = {}

    def attach(self, client: int, reports: str) -> None:
        """A client is there."""
        sender = Sender(self._context, reports)
        self._senders[client] = sender, Outbox(self._engine, sender)

    def detach(self, client: int) -> None:
        """A client is gone."""
        sender, _ = self._senders.pop(client, (None, None))
        if sender is not None:
            sender.close()

    def outbox(self, client: int) -> Outbox | None:
        """The messages to this client; ``None`` where there is none."""
        return self._senders.get(client, (None, None))[1]

    def tell_all(self, report: bytes) -> None:
        """Send this to each."""
        for sender, _ in self._senders.values():
            sender(report)


class Host:
    """Obeys the orders of clients and of the supervisor."""

    def __init__(self, start: EngineStart, engine: Engine, clients: Clients, tell_supervisor: Sender) -> None:
        self._number, self._engine = start.engine, engine
        self._clients, self._tell_supervisor = clients, tell_supervisor
        self._utterances: dict[int, tuple[Utterance, Outlet]] = {}
        self._wake = lambda: engine.post(Wake())

    def obey(self, order: Order) -> None:
        """Do what is asked."""
        match order:
            case Begin():
                self._begin(order)
                return
            case WarmUpOrder():
                start_thread(self._warm_up, "megatalker-warmup")
                return
            case Attach(client=client, reports=reports):
                self._clients.attach(client, reports)
                self.report()
                return
            case Detach(client=client):
                self._clients.detach(client)
                for number, (orphan, _) in list(self._utterances.items()):
                    if number // MOST_UTTERANCES == client:
                        self._engine.post(Cancel(orphan))
                return
        utterance, outlet = self._utterances.get(order.id, (None, None))
        if utterance is None or outlet is None:  # it has ended
            return
        match order:
            case FeedText(text=text, at=at):
                self._engine.post(Feed(utterance, text, at))
            case EndText():
                self._engine.post(FinishText(utterance))
            case Taken(samples=samples):
                outlet.taken(samples)
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
        report = pack_report(status)
        self._clients.tell_all(report)
        self._tell_supervisor(pack(Heartbeat(self._number, status.failure, report)))

    @property
    def busy(self) -> bool:
        """Utterances are open."""
        return bool(self._utterances)

    def _begin(self, order: Begin) -> None:
        engine, outbox = self._engine, self._clients.outbox(order.id // MOST_UTTERANCES)
        if outbox is None:  # nobody would hear it
            return
        made: list[Outlet] = []

        def outlet(progress: Progress) -> Outlet:
            most_s, end = engine.settings.max_untaken_s, partial(self._utterances.pop, order.id, None)
            made.append(Outlet(order.id, progress, outbox, order.word_times, most_s, self._wake, end))
            return made[0]

        try:
            text = TextSegmenter(
                engine.checkpoint.tokenizer,
                engine.settings.max_segment_chars,
                order.request.ids_needed(),
                clean=order.clean,
            )
            for segment in order.segments or ():
                if segment.lead is not None:
                    text.join(segment.lead)
                text.voice = segment.voice
                if segment.text:
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
            outbox.end(Ended(order.id, "error", Failure.of(error), 0, 0, 0, []))

    def _warm_up(self) -> None:
        failure = None
        try:
            self._engine.warmup()
            spare_what_is_loaded()
            collect_rarely()
        except MegatalkerError as error:
            failure = Failure.of(error)
        self._tell_supervisor(pack(WarmedUp(self._number, failure)))


class _ForwardedLog(logging.Handler):
    """Lets the supervisor write what is logged here, in its own form."""

    def __init__(self, engine: int, send: Sender) -> None:
        super().__init__()
        self._engine, self._send = engine, send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(pack(Logged(self._engine, record.name, record.levelno, self.format(record))))


def run(start: EngineStart) -> None:
    """Be an engine process until it is told to end; its supervisor ends it by ending itself, too."""
    context: Context = zmq.Context.instance()
    orders = receiver(context, start.orders)
    send = Sender(context, start.supervisor)
    logging.getLogger().addHandler(_ForwardedLog(start.engine, send))
    registry = (start.registry or BackendRegistry.installed)()
    try:
        checkpoint = Checkpoint(start.folder, start.name)
        heard = {"watermark": "none", "aligner": "estimate"}  # speech is marked and aligned where it is heard
        settings = start.settings.model_copy(update=heard)
        engine = Engine.open(settings, checkpoint=checkpoint, registry=registry)
    except MegatalkerError as error:
        send(pack(EngineOpened(start.engine, Failure.of(error))))
        send.close(linger_ms=-1)
        orders.close()
        return
    with engine:
        switch_threads_often(SWITCH_S)
        engine.watch_calls(LastCall(start.calls))
        host = Host(start, engine, Clients(start.engine, context), send)
        host.report()
        send(pack(EngineOpened(start.engine, None)))
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


def _end_with_supervisor(given: IO[bytes]) -> None:
    """Wait for the end of standard input: the other process has closed it, or is gone."""
    while given.read(1 << 16):
        pass
    os._exit(0)


def main() -> None:
    """Run the process; see the module."""
    for sent_to_all in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # by a terminal, or systemd: not for this one
        signal.signal(sent_to_all, signal.SIG_IGN)
    start, given = told()
    set_log_levels(start.log_levels)
    start_thread(lambda: _end_with_supervisor(given), "megatalker-lifeline")
    run(start)
    zmq.Context.instance().term()  # sends what has not been sent
    os._exit(1)

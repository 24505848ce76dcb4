"""Starts the engine processes, keeps them up, and tells their clients which there are."""

import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from megatalker.engine.costs import RunningClock
from megatalker.errors import BackendFaultError, MegatalkerError
from megatalker.serving.background import start_thread
from megatalker.serving.processes.child import Child
from megatalker.serving.processes.control import (
    LONGEST_GAP_S,
    ClientFailed,
    ClientHello,
    ClientReady,
    Context,
    Detach,
    EngineGone,
    EngineOpened,
    EnginesFailed,
    EnginesOpened,
    EngineStart,
    EngineState,
    EnginesWarm,
    Failure,
    Heartbeat,
    Logged,
    Sender,
    ToClient,
    ToSupervisor,
    WarmedUp,
    WarmUpOrder,
    WarmUpWanted,
    address,
    log_levels,
    pack,
    private_folder,
    receiver,
    unpack_for_supervisor,
)
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

LOOK_S = 0.02
"""Time between two looks for engines that are gone."""
STEADY_S = 60.0
"""Seconds of an engine process's life after which its death is no failed start."""
MOST_STARTS = 5
"""Deaths in a row, each after less than that, after which none takes its place."""
BACKOFF_S = 1.0
"""Before the second start of a place; each further one waits twice as long."""


class Restarts:
    """When other processes take the places of those that have ended.

    Args:
        places: how many there are.
    """

    def __init__(self, places: int) -> None:
        self._ends = [(0, -STEADY_S)] * places
        """By place: how many processes have ended in a row, and when the last one did."""
        self._due: dict[int, float] = {}

    def plan(self, place: int) -> bool:
        """The process in this place has ended just now. ``False``: there is to be no other one."""
        now, (failed, since) = time.monotonic(), self._ends[place]
        failed = 1 if now - since > STEADY_S else failed + 1
        if failed >= MOST_STARTS:
            return False
        self._ends[place] = failed, now
        self._due[place] = now + (BACKOFF_S * 2 ** (failed - 2) if failed > 1 else 0.0)
        return True

    def take_due(self) -> list[int]:
        """Return the places in which a process is to start now, each once."""
        now = time.monotonic()
        due = [place for place, at in self._due.items() if now >= at]
        for place in due:
            del self._due[place]
        return due

    def clear(self) -> None:
        """Start none."""
        self._due.clear()

    def __bool__(self) -> bool:
        """Whether any is to start."""
        return bool(self._due)


class EngineChild:
    """An engine process and what is known about it."""

    def __init__(
        self, start: EngineStart, place: int, context: Context, on_end: Callable[["EngineChild"], None]
    ) -> None:
        self.start, self.place, self.number = start, place, start.engine
        self.opened = self.warm = self.given_up = False
        self.failure: MegatalkerError | None = None
        """Why it could not open, or warm up."""
        self.heard_at: float | None = None
        """When it last said anything, once it is open."""
        self.status: bytes | None = None
        self._orders = Sender(context, start.orders)
        name = f"engine {place} on {start.settings.device}"
        self.process = Child("megatalker.serving.processes", start, name, lambda _child: on_end(self))

    def order(self, order: WarmUpOrder | Detach) -> None:
        """Have it do this."""
        self._orders(pack([order]))

    def forget(self) -> None:
        """The process is over: free the connections to it."""
        self._orders.close()
        self.process.forget()

    @property
    def state(self) -> EngineState:
        """The message to clients about it."""
        start = self.start
        return EngineState(
            self.number,
            self.place,
            start.settings.device,
            self.process.pid,
            start.orders,
            start.calls,
            start.settings.max_streams,
            self.opened,
            self.warm,
        )

    def __str__(self) -> str:
        return str(self.process)


class EngineSupervisor:
    """Keeps an engine process up for each device. Methods may be called from any thread.

    Args:
        settings: of the engines; ``device`` is replaced.
        checkpoint: the folder of what they open, and its name.
        devices: one engine each.
        registry: makes the backends' registry in each process; a function of a module. ``None``: the installed ones.
        lazy: start the engines when the first client comes.
        on_client: told that the process of a client serves, or cannot.
    """

    def __init__(
        self,
        settings: Settings,
        checkpoint: tuple[Path, str],
        devices: Sequence[str],
        registry: Callable[[], Any] | None = None,
        *,
        lazy: bool = False,
        on_client: Callable[[ClientReady | ClientFailed], object] = lambda _message: None,
    ) -> None:
        self._process = os.getpid()
        self._settings, self._checkpoint, self._devices, self._registry = settings, checkpoint, devices, registry
        self.folder = private_folder()
        """Folder of the sockets of supervisor, engines and clients; only this user may look into it."""
        self.address = address(self.folder, "supervisor")
        """Address of the supervisor's socket, to which engines and clients send."""
        self._context: Context = zmq.Context()
        self._mail = receiver(self._context, self.address)
        self._on_client = on_client
        self._lock = threading.RLock()
        self._engines: dict[int, EngineChild] = {}
        """By place."""
        self._clients: dict[int, Sender] = {}
        self._dead: queue.SimpleQueue[EngineChild] = queue.SimpleQueue()
        self._started = 0
        self._restarts = Restarts(len(devices))
        self._opened: EnginesOpened | None = None
        """The answer to clients after the first start."""
        self._wait_for_warmth: list[int] = []
        """Clients."""
        self._keep_warm = False
        self._past: list[EngineGone] = []
        self._clock = RunningClock(longest_gap_s=LONGEST_GAP_S)
        self.failure: MegatalkerError | None = None
        """Why no engine can be had."""
        self._closing = threading.Event()
        if not lazy:
            self._start_all()
        self._thread = start_thread(self._run, "megatalker-supervisor", self._fail)

    def detach(self, client: int) -> None:
        """The process of this client is over: its utterances end."""
        with self._lock:
            sender = self._clients.pop(client, None)
            if sender is not None:
                sender.close()
            for engine in self._engines.values():
                engine.order(Detach(client))

    def close(self) -> None:
        """End the processes. May be called again."""
        if self._closing.is_set() or self._process != os.getpid():
            return
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        ending = [start_thread(engine.process.end, "megatalker-ending") for engine in self._engines.values()]
        for thread in ending:
            thread.join()
        for engine in self._engines.values():
            engine.forget()
        for sender in self._clients.values():
            sender.close()
        self._mail.close(0)
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- processes

    def _start_all(self) -> None:
        for place in range(len(self._devices)):
            self._start(place)

    def _start(self, place: int) -> None:
        self._started += 1
        number, (folder, name) = self._started, self._checkpoint
        start = EngineStart(
            engine=number,
            settings=self._settings.model_copy(update={"device": self._devices[place]}),
            folder=folder,
            name=name,
            orders=address(self.folder, f"orders-{number}"),
            supervisor=self.address,
            registry=self._registry,
            calls=str(Path(self.folder) / f"calls-{number}"),
            log_levels=log_levels(),
        )
        self._engines[place] = EngineChild(start, place, self._context, self._dead.put)

    def _warm_up(self, engine: EngineChild) -> None:
        engine.failure = None
        engine.order(WarmUpOrder())

    def _bury(self, engine: EngineChild) -> None:
        """A process is over: clients go on elsewhere, and another process takes its place."""
        why = engine.process.how_it_ended
        if self._closing.is_set() or self._engines.get(engine.place) is not engine:
            return
        engine.forget()
        del self._engines[engine.place]
        reason = engine.failure or BackendFaultError(f"{engine} ended with {why}; the log says more")
        if not engine.opened and self._opened is None:  # at the first start: whoever opens the engines decides
            self._opened = EnginesOpened(Failure.of(reason))
            self.failure = reason
            self._tell_all(self._opened)
            return
        gone = EngineGone(engine.number, engine.status)
        self._past.append(gone)
        logger.error("%s is gone (%s)", engine, engine.failure or why)
        self._tell_all(gone)
        if not engine.warm:
            self._answer_warmth(reason)
        self._plan_restart(engine, reason)

    def _plan_restart(self, engine: EngineChild, reason: MegatalkerError) -> None:
        if self._restarts.plan(engine.place):
            return
        logger.critical("engine %d has ended %d times in a row and is given up: %s", engine.place, MOST_STARTS, reason)
        if not self._engines and not self._restarts:
            self._give_all_up(BackendFaultError(f"no engine process can be kept up; the last one: {reason}"))

    def _give_all_up(self, failure: MegatalkerError) -> None:
        self.failure = failure
        self._tell_all(EnginesFailed(Failure.of(failure)))

    # ---- clients

    def _tell_all(self, message: ToClient) -> None:
        data = pack(message)
        for sender in self._clients.values():
            sender(data)

    def _welcome(self, hello: ClientHello) -> None:
        sender = self._clients[hello.client] = Sender(self._context, hello.reports)
        if not self._started:
            self._start_all()
        news: list[ToClient] = [*self._past, *(engine.state for engine in self._engines.values())]
        if self._opened is not None:
            news.append(self._opened)
        if self.failure is not None:
            news.append(EnginesFailed(Failure.of(self.failure)))
        for message in news:
            sender(pack(message))

    def _answer_warmth(self, failure: MegatalkerError | None = None) -> None:
        """Answer those who wait for a warm-up, if it is over."""
        failure = failure or next((one.failure for one in self._engines.values() if one.failure is not None), None)
        if failure is None and not all(engine.warm for engine in self._engines.values()):
            return
        waiting, self._wait_for_warmth = self._wait_for_warmth, []
        for client in waiting:
            if client in self._clients:
                self._clients[client](pack(EnginesWarm(None if failure is None else Failure.of(failure))))

    # ---- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            look_at = time.monotonic() + LOOK_S
            while time.monotonic() < look_at and self._mail.poll(int(1e3 * LOOK_S)):
                with self._lock:
                    self._take(unpack_for_supervisor(self._mail.recv()))
            with self._lock:
                self._look()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._give_all_up(BackendFaultError(f"the thread that keeps the engine processes up failed: {error!r}"))

    def _take(self, message: ToSupervisor) -> None:
        match message:
            case ClientHello():
                self._welcome(message)
            case WarmUpWanted(client=client):
                self._keep_warm = True
                self._wait_for_warmth.append(client)
                for engine in self._engines.values():
                    if engine.opened and not engine.warm:
                        self._warm_up(engine)
                self._answer_warmth()
            case ClientReady() | ClientFailed():
                self._on_client(message)
            case _:
                for engine in list(self._engines.values()):
                    if engine.number == message.engine:
                        self._hear(engine, message)

    def _hear(self, engine: EngineChild, message: EngineOpened | WarmedUp | Heartbeat | Logged) -> None:
        if engine.heard_at is not None:
            engine.heard_at = self._clock()
        match message:
            case Heartbeat(failure=failure, status=status):
                engine.status = status
                if failure is not None and not engine.given_up:  # another process may have a device that works
                    engine.given_up, engine.failure = True, failure.exception()
                    logger.error("%s serves no more (%s) and is ended", engine, failure.text)
                    engine.process.kill()
            case Logged(logger=name, level=level, text=text):
                logging.getLogger(name).log(level, "engine %d: %s", engine.place, text)
            case EngineOpened(failure=failure):
                if failure is not None:
                    engine.failure = failure.exception()
                    return
                self._note_opened(engine)
            case WarmedUp(failure=failure):
                engine.warm = failure is None
                engine.failure = None if failure is None else failure.exception()
                self._tell_all(engine.state)
                self._answer_warmth()

    def _note_opened(self, engine: EngineChild) -> None:
        engine.opened, engine.heard_at = True, self._clock()
        self._tell_all(engine.state)
        if self._opened is not None:
            logger.warning("%s has taken the place of the one that is gone", engine)
        elif all(one.opened for one in self._engines.values()) and len(self._engines) == len(self._devices):
            self._opened = EnginesOpened(None)
            self._tell_all(self._opened)
        if self._keep_warm:
            self._warm_up(engine)

    def _look(self) -> None:
        while not self._dead.empty():
            self._bury(self._dead.get())
        now = self._clock()
        for place in self._restarts.take_due():
            self._start(place)
            self._tell_all(self._engines[place].state)
        for engine in self._engines.values():
            if engine.heard_at is not None and now - engine.heard_at > self._settings.step_deadline_s:
                logger.error("%s has said nothing for %.0f s and is ended", engine, now - engine.heard_at)
                engine.heard_at = None
                engine.process.kill()

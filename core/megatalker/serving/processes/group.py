"""In the callers' process: the engine processes, who of them makes which utterance, and what becomes of it when one
dies.

One thread takes all that the engines report. An engine that dies, or says nothing for long, loses its utterances to the
others: they go on from the codes that their callers have, with the same codes. Another process takes its place.
"""

import logging
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import zmq

from megatalker.checkpoint import Checkpoint
from megatalker.engine.chunks import Waiter, wake
from megatalker.engine.guarded_calls import RunningClock
from megatalker.engine.outputs import EngineMetrics, together
from megatalker.errors import BackendFaultError, CapacityError, EngineClosedError, InvalidRequestError, MegatalkerError
from megatalker.plugins import BackendRegistry
from megatalker.serving.background import start_thread
from megatalker.serving.processes.handle import EngineHandle, address, describe_end, log_levels
from megatalker.serving.processes.host import Start
from megatalker.serving.processes.messages import (
    EngineOpened,
    EngineStatus,
    Logged,
    Report,
    SpeechOutput,
    WarmedUp,
    WarmUpOrder,
    unpack_report,
)
from megatalker.serving.processes.routing import choose
from megatalker.serving.processes.session import ProcessSession
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

LOOK_S = 0.02
"""Time between two looks for engines that are gone."""
SILENT_S = 2.0
"""Seconds without a word from an engine after which its utterances go on in others, where there are any."""
STEADY_S = 60.0
"""Seconds of an engine process's life after which its death is no failed start."""
MOST_STARTS = 5
"""Deaths in a row, each after less than that, after which none takes its place."""
BACKOFF_S = 1.0
"""Before the second start of a place; each further one waits twice as long."""
MOST_TRIED_ALONE = 16
"""Utterances of one call that are tried alone after an engine died in it. Trials of more would take longer than
listeners have audio for: they go on together, and are tried alone when a second engine dies in a call for them."""
MOST_FAULTS = 2
"""Engine processes without a backend left that an utterance may have been in: it ends with the last one's error."""


class EngineGroup:
    """One engine process for each device. Methods may be called from any thread.

    Args:
        settings: of the engines; ``device`` is replaced.
        checkpoint: what they open.
        devices: one engine each.
        registry: makes the backends' registry in each process; a function of a module.
    """

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        devices: Sequence[str],
        registry: Callable[[], BackendRegistry],
    ) -> None:
        self._process = os.getpid()
        self._settings, self._checkpoint, self._devices, self._registry = settings, checkpoint, devices, registry
        self._folder = tempfile.mkdtemp(prefix="megatalker-")  # nobody else may look into it
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._reports = self._context.socket(zmq.PULL)
        self._reports.set_hwm(0)
        self._reports.bind(address(self._folder, "reports"))
        self._lock = threading.RLock()
        self._handles: dict[int, EngineHandle] = {}
        """By place."""
        self._sessions: dict[int, ProcessSession] = {}
        self._waiting: dict[int, ProcessSession] = {}
        self._unwanted: queue.SimpleQueue[ProcessSession] = queue.SimpleQueue()
        self._dead: queue.SimpleQueue[EngineHandle] = queue.SimpleQueue()
        self._started = 0
        self._starts: dict[int, tuple[int, float]] = {}
        """By place: starts in a row that came to nothing, and when the last one was."""
        self._restart_at: dict[int, float] = {}
        self._opening: dict[int, Future[None]] = {place: Future() for place in range(len(devices))}
        self._warming: dict[int, Future[None]] = {}
        """By the engine's number."""
        self._keep_warm = False
        self._clock = RunningClock(longest_gap_s=1.0)
        self.failure: MegatalkerError | None = None
        """Why every request is refused: closed, or no engine can be had."""
        self.status: EngineStatus | None = None
        """The latest report of any engine."""
        self._past: list[EngineMetrics] = []
        """Counters of engines that are gone."""
        self._closing = threading.Event()
        for place in range(len(devices)):
            self._start(place)
        self._thread = start_thread(self._run, "megatalker-engines", self._fail)

    def wait_until_open(self) -> None:
        """Wait until each engine takes requests; raises why one does not."""
        for future in list(self._opening.values()):
            future.result()

    def begin(self, session: ProcessSession) -> None:
        """Let an engine make this utterance; raises why none can."""
        with self._lock:
            self.require_serving()
            self._sessions[session.id] = session
            self._place(session)

    def cancel(self, session: ProcessSession) -> None:
        """Its caller wants no more. Takes no lock: a finalizer may call this while its thread holds any."""
        self._unwanted.put(session)

    def warmup(self) -> None:
        """Warm all engines up; raises as :meth:`megatalker.engine.Engine.warmup`."""
        with self._lock:
            self.require_serving()
            self._keep_warm = True
            waited = [self._warm_up(handle) for handle in self._handles.values() if handle.opened]
        for future in waited:
            future.result()

    def require_serving(self) -> None:
        """Raise why every request is refused, if so."""
        if self.failure is not None:
            raise self.failure

    @property
    def handles(self) -> list[EngineHandle]:
        """The engines there are now."""
        with self._lock:
            return list(self._handles.values())

    def metrics(self) -> EngineMetrics:
        """Counters of all engines together, and what those that are there now do."""
        now = [handle.status.metrics for handle in self.handles if handle.status is not None]
        return together([*now, *self._past] or [EngineMetrics.nothing(self._settings.backend, self._settings.codec)])

    def close(self) -> None:
        """End all utterances with ``EngineClosedError``, and the processes. May be called again."""
        if self._closing.is_set() or self._process != os.getpid():
            return
        self._closing.set()
        self._end_all(EngineClosedError("the engine was closed while this request was running"))
        self.failure = EngineClosedError("this engine is closed; open a new one")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        ending = [start_thread(handle.end, "megatalker-ending") for handle in self.handles]
        for thread in ending:
            thread.join()
        self._reports.close(0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- processes

    def _start(self, place: int) -> None:
        self._started += 1
        number = self._started
        start = Start(
            engine=number,
            settings=self._settings.model_copy(update={"device": self._devices[place]}),
            folder=self._checkpoint.folder,
            name=self._checkpoint.name,
            orders=address(self._folder, f"orders-{number}"),
            reports=address(self._folder, "reports"),
            registry=self._registry,
            calls=Path(self._folder) / f"calls-{number}",
            log_levels=log_levels(),
        )
        self._handles[place] = EngineHandle(start, place, self._context, self._dead.put)

    def _warm_up(self, handle: EngineHandle) -> "Future[None]":
        future = self._warming.get(handle.number)
        if future is None or future.done():
            future = self._warming[handle.number] = Future()
            handle.send([WarmUpOrder()])
        return future

    def _bury(self, handle: EngineHandle) -> None:
        """A process is over: its utterances go on elsewhere, and another process takes its place."""
        why = describe_end(handle.process.returncode)
        with self._lock:
            if self._closing.is_set() or self._handles.get(handle.place) is not handle:
                return
            handle.forget()
            del self._handles[handle.place]
            opening, warming = self._opening[handle.place], self._warming.pop(handle.number, None)
            reason = handle.failure or BackendFaultError(f"{handle} ended with {why}; the log says more")
            if not opening.done():  # at the first start: whoever opens the engine decides
                opening.set_exception(reason)
                return
            if handle.status is not None:
                self._past.append(replace(handle.status.metrics, active=0, waiting=0, idle=0, sustainable=None))
            logger.error(
                "%s is gone (%s): %d utterances go on", handle, handle.failure or why, len(self._made_by(handle))
            )
            if warming is not None and not warming.done():
                warming.set_exception(reason)
            self._plan_restart(handle, reason)
            lost = self._made_by(handle)
            self._judge(handle)
            for session in lost:
                if session.id in self._sessions:
                    self._place(session)

    def _plan_restart(self, handle: EngineHandle, reason: MegatalkerError) -> None:
        now, (failed, since) = time.monotonic(), self._starts.get(handle.place, (0, -STEADY_S))
        failed = 1 if now - since > STEADY_S else failed + 1
        if failed >= MOST_STARTS:
            logger.critical("engine %d has ended %d times in a row and is given up: %s", handle.place, failed, reason)
            if not self._handles and not self._restart_at:
                self.failure = BackendFaultError(f"no engine process can be kept up; the last one: {reason}")
                self._end_all(self.failure)
            return
        self._starts[handle.place] = failed, now
        self._restart_at[handle.place] = now + (BACKOFF_S * 2 ** (failed - 2) if failed > 1 else 0.0)

    # ---- utterances

    def _place(self, session: ProcessSession) -> None:
        handle = choose(list(self._handles.values()))
        if handle is not None:
            self._waiting.pop(session.id, None)
            session.give_to(handle)
        else:
            session.wait_for_engine()
            self._waiting[session.id] = session

    def _judge(self, handle: EngineHandle) -> None:
        """An engine died: those whose call it was in are suspects. The one that was in it alone, and is one already, is
        to blame.
        """
        in_call = handle.in_call
        for session in self._made_by(handle):
            session.handle = None
            if session.id not in in_call:
                continue
            session.suspicions += 1
            session.alone = len(in_call) <= MOST_TRIED_ALONE or session.suspicions > 1
            if session.suspicions > 1 and len(in_call) == 1:
                logger.error("the request with seed %d makes engine processes die, and is ended", session.progress.seed)
                complaint = f"{session.suspicions} engine processes died at this request, the last one at it alone"
                advice = "it is not tried again; change its text, voice or sampling, and report it"
                self._finish(session, InvalidRequestError(f"{complaint}; {advice}"))

    def _made_by(self, handle: EngineHandle) -> list[ProcessSession]:
        return [session for session in list(self._sessions.values()) if session.handle is handle]

    def _finish(self, session: ProcessSession, error: MegatalkerError) -> None:
        self._sessions.pop(session.id, None)
        self._waiting.pop(session.id, None)
        session.chunks.finish("error", error)

    def _end_all(self, error: MegatalkerError) -> None:
        with self._lock:
            for session in list(self._sessions.values()):
                self._finish(session, error)

    # ---- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            look_at = time.monotonic() + LOOK_S
            while time.monotonic() < look_at and self._reports.poll(int(1e3 * LOOK_S)):
                self._take(unpack_report(self._reports.recv()))
            self._look()

    def _fail(self, error: BaseException) -> None:
        self.failure = BackendFaultError(f"the thread that hears the engine processes failed: {error!r}")
        self._end_all(self.failure)

    def _take(self, report: Report) -> None:
        handle = next((one for one in self._handles.values() if one.number == report.engine), None)
        if handle is None:
            return
        handle.heard_at = self._clock()
        match report:
            case SpeechOutput():
                self._take_output(report, handle)
            case EngineStatus():
                self.status = handle.status = report
                handle.begun = 0
                if report.failure is not None:
                    self._give_up(handle, report.failure.text)
            case Logged(logger=name, level=level, text=text):
                logging.getLogger(name).log(level, "engine %d: %s", handle.place, text)
            case EngineOpened(failure=failure):
                handle.failure = None if failure is None else failure.exception()
                if failure is None:
                    self._opened(handle)
            case WarmedUp(failure=failure):
                handle.warm = failure is None
                future = self._warming.pop(handle.number, None)
                if future is not None:
                    future.set_result(None) if failure is None else future.set_exception(failure.exception())

    def _take_output(self, output: SpeechOutput, handle: EngineHandle) -> None:
        waiters: list[Waiter] = []
        for audio in output.audio:
            session = self._sessions.get(audio.id)
            if session is not None and session.handle is handle:
                waiters += session.take(audio)
        wake(waiters)
        for ended in output.ended:
            session = self._sessions.get(ended.id)
            if session is None or session.handle is not handle:
                continue
            if ended.error is not None and ended.error.kind == BackendFaultError.__name__:
                session.faults += 1
                if session.faults < MOST_FAULTS:  # the engine serves no more: it goes on where it is moved to
                    self._give_up(handle, ended.error.text)
                    continue
            with self._lock:
                del self._sessions[ended.id]
            session.finish(ended)

    def _give_up(self, handle: EngineHandle, why: str) -> None:
        """No backend is left in this process; another one may have a device that works."""
        if not handle.given_up:
            handle.given_up = True
            logger.error("%s serves no more (%s) and is ended", handle, why)
            handle.kill()

    def _opened(self, handle: EngineHandle) -> None:
        with self._lock:
            handle.opened = True
            if not self._opening[handle.place].done():
                self._opening[handle.place].set_result(None)
            else:
                logger.warning("%s has taken the place of the one that is gone", handle)
            if self._keep_warm:
                self._warm_up(handle)
            for session in list(self._waiting.values()):
                self._place(session)

    def _look(self) -> None:
        while not self._dead.empty():
            self._bury(self._dead.get())
        now = self._clock()
        with self._lock:
            while not self._unwanted.empty():
                session = self._unwanted.get()
                if self._sessions.pop(session.id, None) is not None:
                    self._waiting.pop(session.id, None)
                    session.stop()
            for place, at in list(self._restart_at.items()):
                if time.monotonic() >= at:
                    del self._restart_at[place]
                    self._start(place)
            for handle in self._handles.values():
                silent = handle.opened and now - handle.heard_at > SILENT_S
                if silent and not handle.silent:
                    logger.error("%s has said nothing for %.0f s: its utterances go on elsewhere", handle, SILENT_S)
                handle.silent = silent
                if silent and any(other.able for other in self._handles.values()):
                    for session in self._made_by(handle):
                        self._place(session)
                if silent and now - handle.heard_at > self._settings.step_deadline_s:
                    handle.kill()
            self._end_late()

    def _end_late(self) -> None:
        limit_s, now = self._settings.server.engine_wait_s, time.monotonic()
        late = f"no engine process was there for {limit_s:g} s; try again, or raise the setting server.engine_wait_s"
        for session in list(self._waiting.values()):
            if session.waits_since is not None and now - session.waits_since > limit_s:
                self._finish(session, CapacityError(late))

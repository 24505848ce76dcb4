"""A client of the engine processes: who of them makes which utterance, and what becomes of it when one dies.

All that the engines and their supervisor report is taken in one thread, or in the event loop of a server. An engine
that dies, or says nothing for long, loses its utterances to the others: they go on from the codes that the client has,
with the same codes.
"""

import asyncio
import itertools
import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import zmq

from megatalker.engine.costs import RunningClock
from megatalker.engine.speech.chunks import Waiter, wake
from megatalker.engine.speech.outputs import EngineMetrics, together
from megatalker.errors import BackendFaultError, CapacityError, EngineClosedError, InvalidRequestError, MegatalkerError
from megatalker.serving.processes.control import (
    LONGEST_GAP_S,
    Attach,
    ClientHello,
    Context,
    EngineGone,
    EnginesFailed,
    EnginesOpened,
    EngineState,
    EnginesWarm,
    Failure,
    Sender,
    WarmUpWanted,
    address,
    pack,
    receiver,
)
from megatalker.serving.processes.handle import EngineHandle
from megatalker.serving.processes.listening import LoopListener, ThreadListener, Work
from megatalker.serving.processes.messages import (
    MOST_UTTERANCES,
    EngineStatus,
    SpeechOutput,
    unpack_for_client,
    unpack_status,
)
from megatalker.serving.processes.routing import choose
from megatalker.serving.processes.session import ProcessSession
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

SILENT_S = 2.0
"""Seconds without a word from an engine after which its utterances go on in others, where there are any."""
MOST_TRIED_ALONE = 16
"""Utterances of one call that are tried alone after an engine died in it. Trials of more would take longer than
listeners have audio for: they go on together, and are tried alone when a second engine dies in a call for them."""
MOST_FAULTS = 2
"""Engine processes without a backend left that an utterance may have been in: it ends with the last one's error."""


class EngineClient:
    """Callers' way to the engines. Methods may be called from any thread.

    Args:
        supervisor: its address.
        folder: where sockets are.
        number: which no other client of this supervisor has.
        settings: the engines'.
        loop: the event loop in which reports are taken, while it runs. By default they have a thread of their own.
    """

    def __init__(
        self,
        supervisor: str,
        folder: str,
        number: int,
        settings: Settings,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._process, self._settings, self._number = os.getpid(), settings, number
        self._context: Context = zmq.Context()
        self._address = address(folder, f"client-{number}")
        self._reports = receiver(self._context, self._address)
        self._supervisor = Sender(self._context, supervisor)
        self._lock = threading.RLock()
        self._numbers = itertools.count(number * MOST_UTTERANCES)
        self._handles: dict[int, EngineHandle] = {}
        """By the engine's number."""
        self._sessions: dict[int, ProcessSession] = {}
        self._waiting: dict[int, ProcessSession] = {}
        self._fed: queue.SimpleQueue[ProcessSession] = queue.SimpleQueue()
        self._unwanted: queue.SimpleQueue[ProcessSession] = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._all_open = False
        """So the supervisor says; an engine has said as much, too, when :attr:`status` is there."""
        self._warm: Future[None] = Future()
        self._clock = RunningClock(longest_gap_s=LONGEST_GAP_S)
        self.failure: MegatalkerError | None = None
        """Why every request is refused: closed, or no engine can be had."""
        self.status: EngineStatus | None = None
        """The latest report of any engine."""
        self._past: dict[int, EngineMetrics] = {}
        """Counters of engines that are gone, by number."""
        self._closed = False
        work = Work("megatalker-engines", self._take, self._look, self._fail)
        self._listener = LoopListener(loop, self._reports, work) if loop else ThreadListener(self._reports, work)
        self._supervisor(pack(ClientHello(number, self._address)))

    def wait_until_open(self) -> None:
        """Wait until each engine takes requests; raises why one does not."""
        self._opened.result()

    def next_number(self) -> int:
        """Return the number of one more utterance."""
        return next(self._numbers)

    def begin(self, session: ProcessSession) -> None:
        """Let an engine make this utterance; raises why none can."""
        with self._lock:
            self.require_serving()
            self._sessions[session.id] = session
            self._place(session)

    def cancel(self, session: ProcessSession) -> None:
        """Its caller wants no more. Takes no lock: a finalizer may call this while its thread holds any."""
        self._unwanted.put(session)

    def note_text(self, session: ProcessSession) -> None:
        """It was fed, and must be looked at soon. Takes no lock."""
        self._fed.put(session)

    def warmup(self) -> None:
        """Warm all engines up; raises as :meth:`megatalker.engine.Engine.warmup`."""
        with self._lock:
            self.require_serving()
            if self._warm.done():
                self._warm = Future()
            warm = self._warm
            self._supervisor(pack(WarmUpWanted(self._number)))
        warm.result()

    def require_serving(self) -> None:
        """Raise why every request is refused, if so."""
        if self.failure is not None:
            raise self.failure

    @property
    def handles(self) -> list[EngineHandle]:
        """The engines there are now, in the order of their places."""
        with self._lock:
            return sorted(self._handles.values(), key=lambda handle: handle.place)

    def metrics(self) -> EngineMetrics:
        """Counters of all engines together, and what those that are there now do."""
        with self._lock:
            now = [handle.status.metrics for handle in self._handles.values() if handle.status is not None]
            now += self._past.values()
        return together(now or [EngineMetrics.nothing(self._settings.backend, self._settings.codec)])

    def close(self) -> None:
        """End all utterances with ``EngineClosedError``. May be called again."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        closed = EngineClosedError("the engine was closed while this request was running")
        self._refuse_all(EngineClosedError("this engine is closed; open a new one"), closed)
        self._listener.stop()
        for handle in self.handles:
            handle.forget()
        self._supervisor.close()
        self._reports.close(0)
        self._context.term()

    # ---- utterances

    def _place(self, session: ProcessSession) -> None:
        handle = choose(list(self._handles.values()), session.reference)
        if handle is not None:
            self._waiting.pop(session.id, None)
            session.give_to(handle)
        else:
            session.wait_for_engine()
            self._waiting[session.id] = session

    def _bury(self, handle: EngineHandle) -> None:
        """An engine is no more: its utterances go on elsewhere."""
        handle.forget()
        del self._handles[handle.number]
        lost = self._made_by(handle)
        if lost:
            logger.warning("%s is gone: %d utterances go on", handle, len(lost))
        self._judge(handle)
        for session in lost:
            if session.id in self._sessions:
                self._place(session)

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

    def _refuse_all(self, failure: MegatalkerError, end: MegatalkerError | None = None) -> None:
        """Nothing can be spoken any more."""
        with self._lock:
            self.failure = failure
            for session in list(self._sessions.values()):
                self._finish(session, end or failure)
            for future in (self._opened, self._warm):
                if not future.done():
                    future.set_exception(failure)

    # ---- reports

    def _fail(self, error: BaseException) -> None:
        self._refuse_all(BackendFaultError(f"what the engine processes say cannot be heard any more: {error!r}"))

    def _take(self, packed: bytes) -> None:
        match message := unpack_for_client(packed):
            case SpeechOutput():
                handle = self._handles.get(message.engine)
                if handle is not None:
                    handle.heard_at = self._clock()
                    self._take_output(message, handle)
            case EngineStatus():
                handle = self._handles.get(message.engine)
                if handle is not None:
                    handle.heard_at = self._clock()
                    self.status = handle.status = message
                    handle.begun = 0
                    self._note_opened()
            case EngineState():
                with self._lock:
                    self._note(message)
            case EngineGone():
                with self._lock:
                    if message.status is not None:
                        metrics = unpack_status(message.status).metrics
                        metrics = replace(metrics, active=0, waiting=0, idle=0, sustainable=None)
                        self._past[message.engine] = metrics
                    handle = self._handles.get(message.engine)
                    if handle is not None:
                        self._bury(handle)
            case EnginesOpened(failure=None):
                self._all_open = True
                self._note_opened()
            case EnginesOpened(failure=failure):
                self._resolve(self._opened, failure)
            case EnginesWarm(failure=failure):
                self._resolve(self._warm, failure)
            case EnginesFailed(failure=failure):
                self._refuse_all(failure.exception())

    def _resolve(self, future: "Future[None]", failure: Failure | None) -> None:
        with self._lock:
            if not future.done():
                future.set_result(None) if failure is None else future.set_exception(failure.exception())

    def _note_opened(self) -> None:
        if self._all_open and self.status is not None:
            self._resolve(self._opened, None)

    def _note(self, state: EngineState) -> None:
        handle = self._handles.get(state.engine)
        if handle is None:
            attach = Attach(self._number, self._address)
            handle = self._handles[state.engine] = EngineHandle(state, self._context, attach, self._clock())
        if state.opened and not handle.opened:
            handle.heard_at = self._clock()
        handle.note(state)
        if handle.able:
            for session in list(self._waiting.values()):
                self._place(session)

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
                if session.faults < MOST_FAULTS:  # the supervisor ends the engine, and it goes on where it is moved to
                    handle.given_up = True
                    continue
            with self._lock:
                del self._sessions[ended.id]
            session.finish(ended)

    def _look(self) -> None:
        """Look for text in many pieces, utterances that nobody wants, and engines that say nothing."""
        now = self._clock()
        with self._lock:
            while not self._fed.empty():
                self._fed.get().look()
            while not self._unwanted.empty():
                session = self._unwanted.get()
                if self._sessions.pop(session.id, None) is not None:
                    self._waiting.pop(session.id, None)
                    session.stop()
            for handle in self._handles.values():
                silent = handle.opened and now - handle.heard_at > SILENT_S
                if silent and not handle.silent:
                    logger.error("%s has said nothing for %.0f s: its utterances go on elsewhere", handle, SILENT_S)
                handle.silent = silent
                if silent and any(other.able for other in self._handles.values()):
                    for session in self._made_by(handle):
                        self._place(session)
            self._end_late()

    def _end_late(self) -> None:
        limit_s, now = self._settings.server.engine_wait_s, time.monotonic()
        late = f"no engine process was there for {limit_s:g} s; try again, or raise the setting server.engine_wait_s"
        for session in list(self._waiting.values()):
            if session.waits_since is not None and now - session.waits_since > limit_s:
                self._finish(session, CapacityError(late))

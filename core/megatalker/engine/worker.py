"""The one thread that touches the backends: takes commands, runs ticks, replaces what fails."""

import logging
import math
import queue
import threading
from dataclasses import dataclass
from typing import Any

import torch

from megatalker.engine.backend_role import LoadedBackend
from megatalker.engine.commands import Cancel, Command, CommandQueue, Feed, FinishText, Lend, Submit, Wake, Warmup
from megatalker.engine.dispatcher import Dispatcher
from megatalker.engine.endings import end_everything, finish, refuse_waiting, retire
from megatalker.engine.failover import fill, not_warmed_up, replace
from megatalker.engine.guarded_calls import CallRegister, Fault, GuardedCalls, Superseded
from megatalker.engine.preparation import go_on
from megatalker.engine.rehearsal import Rehearsal
from megatalker.engine.scheduler import StreamStatus
from megatalker.engine.state import WorkerState
from megatalker.errors import BackendFaultError, CapacityError, EngineClosedError, MegatalkerError, describe_error
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

LEND_POLL_S = 0.05  # not tuned: a poll period
MOST_FAILURES = 3  # not tuned: a bound of trials; a worker that fails more often would fail all the time
MOST_ENDINGS = 16  # measured: docs/notes/throughput.md#what-the-host-takes
"""At most this many streams are finished between two launches; finishing hundreds at once delays others by 27 ms."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Facts that a worker needs besides the state."""

    builder: PromptBuilder
    settings: Settings
    threads: int
    """Processor threads of one operation of torch."""


class Worker(threading.Thread):
    """Serves one generation; see :mod:`megatalker.engine.state`."""

    def __init__(self, state: WorkerState, commands: CommandQueue, register: CallRegister, own: WorkerSettings) -> None:
        super().__init__(name=f"megatalker-worker-{register.generation}", daemon=True)
        self._state, self._commands, self._builder, self._threads = state, commands, own.builder, own.threads
        self._calls = GuardedCalls(register, state.talker, own.settings.step_deadline_s)
        self._dispatcher = Dispatcher(state, self._calls, own.builder, own.settings, self._obey_commands)
        self.orphans: list[LoadedBackend[Any]] = []
        """Backends to close when a call returns after this worker was abandoned."""
        self._max_streams = own.settings.max_streams
        self._done = self._woken = False
        self._failures = 0

    def run(self) -> None:
        """Work until the engine closes, or until another worker has taken over."""
        try:
            torch.set_num_threads(self._threads)  # of this thread
            for utterance in self._state.utterances:  # what the worker before had under way
                utterance.rewind_codec()
            self._state.update_all()
        except BaseException as error:
            self._fail(error)
        with torch.no_grad():
            try:
                while not self._done:
                    self._turn()
            except Superseded:
                self._leave()

    def _turn(self) -> None:
        state = self._state
        try:
            if self._commands.closing:
                self._shut_down()
                return
            if state.failure is None:
                self._fill()
                self._dispatcher.talker.take()  # what was begun when a codec failed
                self._warm_up()
            did = self._timed_tick()
            self._prepare()
            self._lend()
            self._obey_commands(0.0 if did else self._time_to_wait())
        except Superseded:
            raise
        except BaseException as error:
            if self._commands.closing and state.opened.done():  # what fails then was interrupted
                return
            if isinstance(error, Fault):
                replace(state, self._calls, error)
                state.update_all()
            else:  # nothing is left to try, or this engine has a bug: nobody may wait for ever
                self._fail(error)

    def _timed_tick(self) -> bool:
        clock, counters, paused_s = self._state.clock, self._state.counters, self._calls.paused_s
        frames = counters.frames
        began, called = clock(), self._calls.seconds
        did = self._tick()
        if did:
            backend_s = self._calls.seconds - called
            counters.ticks += 1
            counters.backend_s += backend_s
            counters.host_s += clock() - began - backend_s
            if self._dispatcher.is_warm:
                seconds = clock() - began - (self._calls.paused_s - paused_s)
                self._state.throughput.observe_work(
                    (counters.frames - frames) * self._dispatcher.frame_s, max(0.0, seconds)
                )
        return did

    def _tick(self) -> bool:
        """Make one launch; ``False`` when there was nothing to do."""
        did = self._state.failure is None and self._dispatcher.talker.release()
        did |= self._dispatcher.launch()
        return self._finish_ended() or did

    def _finish_ended(self) -> bool:
        """End streams that have nothing more to say, once their rows are free: hundreds may hang up at one moment."""
        state = self._state
        silent = state.codec.loaded is None
        ended = [
            one for one in state.utterances if one.ending is not None and (silent or not (one.pending or one.joints))
        ]
        ended = ended[:MOST_ENDINGS]
        for utterance in ended:
            retire(state, utterance)
        if state.failure is None:
            self._dispatcher.talker.release()
        for utterance in ended:
            finish(state, self._commands, utterance)
        return bool(ended)

    # ---- commands

    def _obey_commands(self, timeout: float | None = 0.0) -> bool:
        """Wait for a command, so long or for ever, and obey all; says whether there was any."""
        did = False
        try:
            command = self._commands.queue.get(block=timeout != 0.0, timeout=timeout)
            while True:
                did = True
                self._obey(command)
                command = self._commands.queue.get_nowait()
        except queue.Empty:
            if self._woken:
                self._woken = False
                for utterance in self._state.utterances:
                    if utterance.status is StreamStatus.FULL:
                        utterance.update(self._state.clock())
            return did

    def _time_to_wait(self) -> float | None:
        """Until the first stream that was ahead of playback may go on, until waiting for a row makes a difference, or
        until the talker may have prepared something; ``None``: until there is a command.
        """
        state = self._state
        until = self._dispatcher.rest_until
        if state.failure is None and state.talker.loaded is not None:
            until = min(until, state.talker.loaded.prepare_at)
        return None if until == math.inf else max(0.0, until - state.clock())

    def _obey(self, command: Command) -> None:
        state = self._state
        match command:
            case Submit(utterance):
                state.utterances.append(utterance)
                if state.failure is not None:
                    utterance.end("error", state.failure)
                    return
                self._dispatcher.enter(utterance)
                utterance.end_if_said()
            case Feed(utterance, text, at):
                utterance.incoming.pieces.append((text, at))
                state.unread[utterance] = None
            case FinishText(utterance):
                utterance.incoming.complete = True
                state.unread[utterance] = None
            case Cancel(utterance, error):
                if error is None:
                    utterance.end("cancelled")
                    utterance.drop_pending()
                else:
                    utterance.fail(error)
                utterance.update(state.clock())
            case Wake():
                self._woken = True
            case Warmup(done):
                state.warmups.append(done)
            case Lend():
                state.loans.append(command)
        if state.failure is not None:
            refuse_waiting(state, state.failure)

    def _warm_up(self) -> None:
        """Warm both backends up where somebody waits for it."""
        state = self._state
        if not state.warmups:
            return
        try:
            self._calls.warmup(state.talker)
            self._calls.warmup(state.codec)
            self._calls.device("prompts", self._builder.warmup)
            row, release = self._builder.end_row, self._dispatcher.talker.release
            Rehearsal(state, self._calls, row, release).run(self._max_streams)
            if state.talker.loaded is not None:
                state.talker.loaded.prepare_at = 0.0
        except Fault as fault:
            error = not_warmed_up(fault)
            if error is None or self._commands.closing:
                raise
            replace(state, self._calls, fault)
            if not state.utterances:  # nothing is accepted any more once the callers know
                raise error from fault
            for done in state.warmups:
                done.set_exception(error)
            state.warmups.clear()
            self._fill()
            return
        for done in state.warmups:
            done.set_result(None)
        state.warmups.clear()

    def _prepare(self) -> None:
        talker, now = self._state.talker.loaded, self._state.clock()
        if talker is not None and talker.prepare_at <= now:
            go_on(self._calls, talker, self._state.utterances, now)

    def _lend(self) -> None:
        """Lend the backends to each caller who asks, unless streams are running."""
        state = self._state
        while state.loans and state.talker.loaded is not None and state.codec.loaded is not None:
            loan = state.loans.pop(0)
            if state.utterances:
                loan.lent.set_exception(
                    CapacityError("streams are running; the backends are lent between streams only")
                )
                continue
            loan.lent.set_result((state.talker.loaded.instance, state.codec.loaded.instance))
            while not loan.returned.wait(LEND_POLL_S) and not self._commands.closing:
                pass

    # ---- beginning and end

    def _fill(self) -> None:
        state = self._state
        if state.codec.loaded is None:  # first: while it loads, it takes more memory than it keeps
            fill(state, self._calls, state.codec)
        if state.talker.loaded is None:
            fill(state, self._calls, state.talker)
        if not state.opened.done():
            state.opened.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Nobody can be served any more."""
        state = self._state
        if not state.opened.done():
            self._done = True
            self._free_backends()
            state.opened.set_exception(error)
            return
        self._failures += 1
        if self._failures > MOST_FAILURES and state.failure is not None:  # even ending the streams fails
            self._done = True
            end_everything(state, self._commands, state.failure)
            return
        first = state.failure is None
        if isinstance(error, MegatalkerError):
            state.failure = error
            logger.error("%s", error)
        else:
            state.failure = BackendFaultError(f"the engine failed: {describe_error(error)}; open a new engine")
            logger.error("the engine failed", exc_info=error)
        refuse_waiting(state, state.failure)
        for utterance in state.utterances:
            if first:
                utterance.end("error", state.failure)
            else:  # handing out what was left fails, too
                utterance.fail(state.failure)

    def _shut_down(self) -> None:
        self._done = True
        error = EngineClosedError("the engine was closed while this request was running")
        end_everything(self._state, self._commands, error)
        self._free_backends()

    def _free_backends(self) -> None:
        for role in (self._state.talker, self._state.codec):
            loaded, role.loaded = role.loaded, None
            if loaded is not None:
                self._calls.close(role, loaded)

    def _leave(self) -> None:
        """Abandoned inside a call that has returned at last: free the backends that were given up with this thread."""
        state, loaded = self._state, self._calls.last_used
        orphans = set(self.orphans)
        if loaded is not None and loaded not in (state.talker.loaded, state.codec.loaded):
            orphans.add(loaded)
        for orphan in orphans:
            orphan.close()

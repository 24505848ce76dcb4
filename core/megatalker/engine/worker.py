"""The one thread that touches the backends: takes commands, runs ticks, replaces what fails."""

import logging
import math
import queue
import threading
from dataclasses import dataclass

import torch

from megatalker.engine.board import Board, Superseded
from megatalker.engine.calls import Calls, Fault
from megatalker.engine.commands import Cancel, Command, Feed, FinishText, Lend, Submit, Warmup
from megatalker.engine.ending import end_everything, finish, refuse
from megatalker.engine.recovery import fill, replace
from megatalker.engine.session import Session
from megatalker.engine.sounding import Sounding
from megatalker.engine.talking import Talking, retire
from megatalker.errors import BackendFaultError, CapacityError, EngineClosedError
from megatalker.prompt import PromptBuilder

logger = logging.getLogger(__name__)

LEND_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Rules:
    """What a worker needs to know besides the board."""

    builder: PromptBuilder
    max_streams: int
    step_deadline_s: float


class Worker(threading.Thread):
    """Serves one generation of a board; see :mod:`megatalker.engine.board`."""

    def __init__(self, board: Board, rules: Rules) -> None:
        super().__init__(name=f"megatalker-worker-{board.generation}", daemon=True)
        self._board = board
        self._calls = Calls(board, board.generation, rules.step_deadline_s)
        self._talking = Talking(board, self._calls, rules.builder, rules.max_streams)
        self._sounding = Sounding(board, self._calls)
        self._done = False

    def run(self) -> None:
        """Work until the engine closes, or until another worker has taken over."""
        for session in self._board.sessions:  # what the worker before had under way
            session.sound_again()
        with torch.no_grad():
            try:
                while not self._done:
                    self._turn()
            except Superseded:
                self._leave()

    def _turn(self) -> None:
        board = self._board
        try:
            if board.closing:
                self._shut_down()
                return
            if board.dead is None:
                self._fill()
                self._talking.take()  # what was begun when a codec failed
                self._warm_up()
            idle = not self._tick()
            self._lend()
            self._obey_commands(wait=idle)
        except Fault as fault:
            replace(board, self._calls, fault)
        except Exception as error:  # nothing is left to try, or this engine has a bug: nobody may wait for ever
            self._give_up(error)

    def _tick(self) -> bool:
        """One round for all streams; ``False`` when there was nothing to do."""
        board, talking = self._board, self._talking
        did = False
        if board.dead is None:
            did |= talking.release()
            did |= talking.read_text()
            did |= self._prefill()
        did |= self._decode()
        if board.codec.loaded is not None:
            did |= self._sounding.start(board.clock())
        did |= self._finish_ended()
        return did

    def _prefill(self) -> bool:
        """Begin streams; prompts take long, so audio on its way is handed out before."""
        chosen = self._talking.next_prompts()
        if chosen:
            self._sounding.collect()
        self._talking.prefill(chosen)
        return bool(chosen)

    def _decode(self) -> bool:
        """Frames, and while they are made the audio of the frames before."""
        did = False
        try:
            if self._board.dead is None:
                did |= self._talking.begin(self._board.clock())
        except Fault:
            self._sounding.collect()  # not to wait until another talker is loaded
            raise
        did |= self._sounding.collect()
        self._talking.take()
        return did

    def _finish_ended(self) -> bool:
        """End the streams that have nothing more to say, once their rows are free."""
        board = self._board
        silent = board.codec.loaded is None
        ended = [s for s in board.sessions if s.ending is not None and (silent or not s.pending)]
        for session in ended:
            retire(board, session)
        if board.dead is None:
            self._talking.release()
        for session in ended:
            finish(board, session)
        return bool(ended)

    # ---- commands

    def _obey_commands(self, *, wait: bool) -> None:
        timeout = self._time_to_wait() if wait else 0.0
        try:
            command = self._board.commands.get(block=timeout != 0.0, timeout=timeout)
            while True:
                self._obey(command)
                command = self._board.commands.get_nowait()
        except queue.Empty:
            pass

    def _time_to_wait(self) -> float | None:
        """Until the first stream that was ahead of playback may go on; ``None``: until there is a command."""
        until = min((session.held_until for session in self._board.sessions if session.decodable), default=math.inf)
        return None if until == math.inf else max(0.0, until - self._board.clock())

    def _obey(self, command: Command) -> None:
        board = self._board
        match command:
            case Submit(session):
                board.sessions.append(session)
                if board.dead is not None:
                    session.end("error", board.dead)
            case Feed(session) | FinishText(session):
                try:
                    _tell(session, command)
                except Exception as error:  # whatever it is, it concerns this utterance alone
                    session.end("error", error)
            case Cancel(session):
                session.drop_pending()
                session.end("cancelled")
            case Warmup(done):
                board.warmups.append(done)
            case Lend():
                board.loans.append(command)
        if board.dead is not None:
            refuse(board, board.dead)

    def _warm_up(self) -> None:
        board = self._board
        if board.warmups:
            self._calls.warmup(board.talker)
            self._calls.warmup(board.codec)
            for done in board.warmups:
                done.set_result(None)
            board.warmups.clear()

    def _lend(self) -> None:
        """Lend the backends to each caller who asks, unless streams are running."""
        board = self._board
        while board.loans and board.talker.loaded is not None and board.codec.loaded is not None:
            loan = board.loans.pop(0)
            if board.sessions:
                loan.lent.set_exception(
                    CapacityError("streams are running; the backends are lent between streams only")
                )
                continue
            loan.lent.set_result((board.talker.loaded.instance, board.codec.loaded.instance))
            while not loan.returned.wait(LEND_POLL_S) and not board.closing:
                pass

    # ---- beginning and end

    def _fill(self) -> None:
        board = self._board
        fill(board, self._calls, board.talker)
        fill(board, self._calls, board.codec)
        if not board.opened.done():
            board.opened.set_result(None)

    def _give_up(self, error: Exception) -> None:
        board = self._board
        if not board.opened.done():
            self._done = True
            self._free_backends()
            board.opened.set_exception(error)
            return
        first = board.dead is None
        if isinstance(error, BackendFaultError):
            board.dead = error
            logger.error("%s", error)
        else:
            board.dead = BackendFaultError(f"the engine failed: {type(error).__name__}: {error}; open a new engine")
            logger.exception("the engine failed")
        refuse(board, board.dead)
        for session in board.sessions:
            session.end("error", board.dead)
            if not first:  # handing out what was left fails, too
                session.drop_pending()

    def _shut_down(self) -> None:
        self._done = True
        end_everything(self._board, EngineClosedError("the engine was closed while this request was running"))
        self._free_backends()

    def _free_backends(self) -> None:
        for slot in (self._board.talker, self._board.codec):
            loaded, slot.loaded = slot.loaded, None
            if loaded is not None:
                self._calls.close(slot, loaded)

    def _leave(self) -> None:
        """Abandoned inside a call that has returned at last: free the backends that were given up with this thread."""
        board, loaded = self._board, self._calls.last_used
        orphans = set(board.orphans)
        if loaded is not None and loaded not in (board.talker.loaded, board.codec.loaded):
            orphans.add(loaded)
        for orphan in orphans:
            orphan.close()


def _tell(session: Session, command: Feed | FinishText) -> None:
    """Pass text on to the session's script."""
    script = session.script
    if isinstance(command, Feed):
        if not session.record.segments and not script.can_begin:
            session.record.requested_at = command.at
        script.feed(command.text)
        return
    script.finish()
    if session.segment is None and script.exhausted:
        session.end("eos")

"""How streams end, and how everything ends."""

import queue

from megatalker.engine.board import Board
from megatalker.engine.commands import Lend, Submit, Warmup
from megatalker.engine.session import Session
from megatalker.errors import MegatalkerError


def finish(board: Board, session: Session) -> None:
    """The session is over: take it off the board, then tell its consumer."""
    board.sessions.remove(session)
    reason = session.ending or "error"
    board.counters.cancelled += reason == "cancelled"
    board.counters.errors += reason == "error"
    with board.lock:
        board.load -= 1
    session.forget()
    session.mailbox.finish(reason, session.error)


def refuse(board: Board, error: MegatalkerError) -> None:
    """Nobody will be served any more: fail those who wait for something else than a stream."""
    for done in board.warmups:
        done.set_exception(error)
    board.warmups.clear()
    for loan in board.loans:
        loan.lent.set_exception(error)
    board.loans.clear()


def end_everything(board: Board, error: MegatalkerError) -> None:
    """End all streams and requests, also those still in the queue. Nobody else may touch the board meanwhile."""
    while True:
        try:
            command = board.commands.get_nowait()
        except queue.Empty:
            break
        match command:
            case Submit(session):
                board.sessions.append(session)
            case Warmup(done):
                board.warmups.append(done)
            case Lend():
                board.loans.append(command)
    refuse(board, error)
    for session in list(board.sessions):
        session.end("error", error)
        finish(board, session)

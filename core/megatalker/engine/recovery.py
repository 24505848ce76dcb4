"""Filling a slot, at the start and after a failure, and moving the streams over."""

import logging
from typing import Any

from megatalker.engine.board import Board
from megatalker.engine.calls import Calls, Fault, InstanceT
from megatalker.engine.facts import BackendSwitch
from megatalker.engine.slot import Loaded, Slot
from megatalker.errors import BackendFaultError, BackendUnavailableError, MegatalkerError

logger = logging.getLogger(__name__)


def fill(board: Board, calls: Calls, slot: Slot[InstanceT]) -> None:
    """Load the next usable backend into an empty slot, and let all streams continue there.

    Raises:
        MegatalkerError: none is left. Before the engine is open, the loader's own error where the backend was asked for
            by name; afterwards ``BackendFaultError``.
    """
    while slot.loaded is None:
        option = slot.next()
        if option is None:
            raise _nothing_left(slot)
        logger.info("loading %s backend %s", slot.kind, option.name)
        try:
            instance = calls.load(slot, option.name, option.load)
        except Exception as error:  # a stranger's loader may fail in any way
            if slot.strict and not slot.last:
                raise _not_loaded(slot, option.name, error) from error
            board.give_up(slot, option.name, f"loading raised {type(error).__name__}: {error}")
            continue
        previous = slot.fill(option, instance)
        _move_streams(board, slot, previous)


def replace(board: Board, calls: Calls, fault: Fault) -> None:
    """Take a faulty backend out of its slot and free it."""
    loaded: Loaded[Any] | None = fault.slot.loaded
    board.give_up(fault.slot, fault.name, fault.reason)
    if loaded is not None:
        calls.close(fault.slot, loaded)


def _move_streams(board: Board, slot: Slot[Any], previous: str) -> None:
    if slot.kind == "talker":
        board.to_release.clear()
        board.row_limit = None
    moved = 0
    for session in board.sessions:
        if slot.kind == "talker":
            session.record.backend = slot.last
            frame = session.frames
            if session.segment is not None:
                session.segment.handle = None
        else:
            session.record.codec = slot.last
            frame = session.record.frames
            session.codec_state = None
        if session.admitted and previous:
            switch = BackendSwitch(slot.kind, previous, slot.last, slot.faulty[previous], frame)
            session.record.switches += (switch,)
            moved += 1
    board.counters.switches += moved
    if previous:
        logger.warning("%d streams continue on %s backend %s instead of %s", moved, slot.kind, slot.last, previous)


def _not_loaded(slot: Slot[Any], name: str, error: Exception) -> MegatalkerError:
    if isinstance(error, MegatalkerError):
        return error
    return BackendUnavailableError(
        f"{slot.kind} backend {name!r} failed to load: {type(error).__name__}: {error}. "
        "Fix that, or choose another backend (megatalker backends lists them)."
    )


def _nothing_left(slot: Slot[Any]) -> MegatalkerError:
    if not slot.last:
        return BackendUnavailableError(slot.why_empty())
    return BackendFaultError(f"{slot.why_empty()}; open a new engine")

"""Filling a role, at the start and after a failure, and moving the streams over."""

import logging
from collections.abc import Callable
from typing import Any

from megatalker.engine.backend_role import BackendOption, BackendRole, InstanceT, LoadedBackend
from megatalker.engine.blame import blame, drop_accusation
from megatalker.engine.guarded_calls import Fault, GuardedCalls
from megatalker.engine.outputs import BackendSwitch
from megatalker.engine.state import WorkerState
from megatalker.errors import (
    BackendFaultError,
    BackendUnavailableError,
    CheckpointError,
    MegatalkerError,
    SettingsError,
    describe_error,
)

logger = logging.getLogger(__name__)


def fill(state: WorkerState, calls: GuardedCalls, role: BackendRole[InstanceT]) -> None:
    """Load the next usable backend into the empty role, and let all streams continue there.

    Raises:
        CheckpointError: the checkpoint's files are damaged.
        MegatalkerError: none is left. Before the engine is open, the loader's own error where the backend was asked for
            by name; afterwards ``BackendFaultError``.
    """
    while True:
        option = role.next()
        if option is None:
            raise _nothing_left(role)
        logger.info("loading %s backend %s", role.kind, option.name)
        try:
            instance = calls.load(role, option.name, _loader(role, option))
        except Exception as error:  # a stranger's loader may fail in any way
            opening = not role.last
            if opening and isinstance(error, CheckpointError):  # no backend can read what is damaged
                raise
            if opening and role.strict:
                raise _not_loaded(role, option.name, error) from error
            role.give_up(option.name, f"loading raised {describe_error(error)}")
            drop_accusation(state.utterances, role, option.name)
            continue
        previous = role.fill(option, instance)
        _move_streams(state, role, previous)
        return


def replace(state: WorkerState, calls: GuardedCalls, fault: Fault) -> None:
    """Take a backend that failed out of its role, find out who is to blame, and free it."""
    loaded: LoadedBackend[Any] | None = fault.role.loaded
    blame(state.utterances, fault.role, fault.name, fault.reason, fault.served)
    if loaded is not None:
        calls.close(fault.role, loaded)


def not_warmed_up(fault: Fault) -> MegatalkerError | None:
    """The error for those who wait for the warm-up that failed, where no other backend may stand in silently: this one
    was asked for by name, or says which of its own settings cannot be met. Else ``None``.
    """
    role, cause = fault.role, fault.__cause__
    own_settings = f"{'backends' if role.kind == 'talker' else 'codecs'}.{fault.name}."
    if isinstance(cause, SettingsError) and own_settings in str(cause):
        return cause
    if not role.strict or fault.name != role.options[0].name:
        return None
    return BackendUnavailableError(
        f"{fault.role.kind} backend {fault.name!r} was asked for by name and cannot be used here: {fault.reason}. "
        "Mend that, or choose another backend (megatalker backends lists them; 'auto' takes the best that works)."
    )


def _loader(role: BackendRole[InstanceT], option: BackendOption[InstanceT]) -> Callable[[], InstanceT]:
    """Loads the backend; where another one has failed, it must also do something harmless before it is relied on."""

    def load_and_try() -> InstanceT:
        instance = option.load()
        try:
            instance.smoke_test()
        except BaseException:
            LoadedBackend(role.kind, option.name, instance).close()
            raise
        return instance

    return load_and_try if role.last else option.load


def _move_streams(state: WorkerState, role: BackendRole[Any], previous: str) -> None:
    if role.kind == "talker":
        state.talker_work.to_release.clear()
        state.talker_work.row_limit = None
    moved = 0
    for utterance in state.utterances:
        progress = utterance.progress
        if role.kind == "talker":
            progress.backend, frame = role.last, len(utterance.frames)
            if utterance.decoder is not None:
                utterance.decoder.handle = None
        else:
            progress.codec, frame = role.last, utterance.delivered
            utterance.lose_codec()
        if previous and (utterance.admitted or progress.segments):
            switch = BackendSwitch(role.kind, previous, role.last, role.latest_fault, frame)
            progress.switches += (switch,)
            moved += 1
    state.counters.switches += moved
    state.update_all()
    if previous:
        logger.warning("%d streams continue on %s backend %s instead of %s", moved, role.kind, role.last, previous)


def _not_loaded(role: BackendRole[Any], name: str, error: Exception) -> MegatalkerError:
    if isinstance(error, MegatalkerError):
        return error
    return BackendUnavailableError(
        f"{role.kind} backend {name!r} failed to load: {describe_error(error)}. "
        "Fix that, or choose another backend (megatalker backends lists them)."
    )


def _nothing_left(role: BackendRole[Any]) -> MegatalkerError:
    if not role.last:
        return BackendUnavailableError(role.why_empty())
    return BackendFaultError(f"{role.why_empty()}; open a new engine")

"""Failover: filling a role at the start and after a failure, moving the streams over, and finding out what failed.

Either the backend is to blame for a failure, or one request at which every backend fails. The rule:

* A backend that fails in a call is taken out, the next one is loaded, and all utterances go on there. Those that the
  call was for are *suspects*: each goes on alone, its prompt and its next frame (at a codec, its next audio) in calls
  of their own, while all others go on together.
* A suspect at which a backend fails once more, alone, is to blame. It is ended with ``InvalidRequestError``, and every
  backend that failed at it is cleared: it is loaded again when its turn comes.
* When all suspects of a backend have passed, the backend is to blame and is used no more.
* When one of them ended before it was tried, nobody can know, and the backend is cleared.
* A call for no utterance (loading, warm-up, release) has no suspects: the backend is to blame.
* Nor is a suspect to blame where memory has run out: what a request may take is bounded, so that others have taken it.

Where no other backend is left, another instance of the one that failed stands in for it. What is loaded in place of
another must first do something harmless (``smoke_test`` of the checking shells): a backend that fails at everything is
found out there, and no request is blamed for it.
"""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from megatalker.engine.backend_role import Accusation, BackendOption, BackendRole, InstanceT, LoadedBackend
from megatalker.engine.guarded_calls import Fault, GuardedCalls
from megatalker.engine.speech.outputs import BackendSwitch
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.errors import (
    BackendFaultError,
    BackendUnavailableError,
    CheckpointError,
    InvalidRequestError,
    MegatalkerError,
    SettingsError,
    describe_error,
)

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = re.compile(
    r"MemoryError|out of memory|[Cc]an.t allocate memory|bad_alloc|could not create a primitive|can.t start new thread"
)
"""How PyTorch, oneDNN and Python say that memory has run out."""
ELSEWHERE = "in another process"
"""Stands for the backends of an engine that is gone."""
Everybody = Collection[Utterance]
"""All unfinished utterances."""


def blame(everybody: Everybody, role: BackendRole[Any], name: str, reason: str, served: Sequence[Utterance]) -> None:
    """Backend ``name`` failed in a call for ``served``: take it out, and find somebody to blame, now or later."""
    alone = len(served) == 1 and served[0].is_suspect(role.kind)
    if not served or (alone and OUT_OF_MEMORY.search(reason)):
        role.give_up(name, reason)
        drop_accusation(everybody, role, name)
    elif alone:
        role.take_out(name, reason)
        _convict(everybody, role, name, reason, served[0])
    else:
        logger.warning("%s backend %s failed in a call for %d streams: %s", role.kind, name, len(served), reason)
        role.take_out(name, reason)
        role.accused[name] = Accusation(reason)
        for utterance in served:
            utterance.suspected.add((role.kind, name))


def suspect(roles: Sequence[BackendRole[Any]], utterance: Utterance) -> None:
    """An engine in another process died in a call for it: it is tried alone. No backend of this engine is accused."""
    for role in roles:
        role.accused[ELSEWHERE] = Accusation("its process died in a call for it", doubtful=True)
        utterance.suspected.add((role.kind, ELSEWHERE))


def pass_trial(everybody: Everybody, role: BackendRole[Any], suspect: Utterance) -> None:
    """The backend in charge served this suspect alone, without a fault.

    Raises:
        Fault: that proves the backend in charge to blame for an earlier failure of its own.
    """
    in_charge = "" if role.loaded is None else role.loaded.name
    names = sorted((name for kind, name in suspect.suspected if kind == role.kind), key=in_charge.__eq__)
    suspect.suspected.difference_update([(role.kind, name) for name in names])
    for name in names:
        reason = role.accused[name].reason
        if not _is_decided(everybody, role, name) or _is_cleared(role, name):
            continue
        if name == in_charge:
            raise Fault(role, name, reason)
        role.give_up(name, reason)
        drop_accusation(everybody, role, name)


def leave_untried(everybody: Everybody, roles: Sequence[BackendRole[Any]], suspect: Utterance) -> None:
    """A suspect has ended before its trial was over; ``everybody`` are the others."""
    for role in roles:
        for kind, name in suspect.suspected:
            if kind == role.kind:
                role.accused[name].doubtful = True
                if _is_decided(everybody, role, name):
                    _is_cleared(role, name)


def drop_accusation(everybody: Everybody, role: BackendRole[Any], name: str) -> None:
    """It is known who is to blame for the failures of this backend, if there were any."""
    role.accused.pop(name, None)
    for utterance in everybody:
        utterance.suspected.discard((role.kind, name))


def _convict(everybody: Everybody, role: BackendRole[Any], name: str, reason: str, culprit: Utterance) -> None:
    names = [other for kind, other in culprit.suspected if kind == role.kind]
    failures = [f"{other}: {role.accused[other].reason}" for other in names] + [f"{name}, with it alone: {reason}"]
    for other in names:
        drop_accusation(everybody, role, other)
    seed, what = culprit.progress.seed, "; ".join(failures)
    logger.error("the stream with seed %d makes %s backends fail and is ended alone (%s)", seed, role.kind, what)
    end = culprit.fail if role.kind == "codec" else partial(culprit.end, "error")
    end(
        InvalidRequestError(
            f"this request makes {role.kind} backends fail and was ended alone ({what}); "
            "change its text, voice or sampling, and report it if they look ordinary"
        )
    )


def _is_decided(everybody: Everybody, role: BackendRole[Any], name: str) -> bool:
    return not any((role.kind, name) in utterance.suspected for utterance in everybody)


def _is_cleared(role: BackendRole[Any], name: str) -> bool:
    """Whether nobody can know who was to blame; the accusation is dropped then."""
    if not role.accused[name].doubtful:
        return False
    logger.info("%s backend %s is cleared: a stream ended that may have been to blame", role.kind, name)
    del role.accused[name]
    return True


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

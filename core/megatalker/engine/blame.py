"""Blame for the failure of a backend: the backend, or one request at which every backend fails.

The rule:

* A backend that fails in a call is taken out, the next one is loaded, and all utterances go on there. Those that the
  call was for are *suspects*: each goes on alone, its prompt and its next frame (at a codec, its next audio) in calls
  of their own, while all others go on together.
* A suspect at which a backend fails once more, alone, is to blame. It is ended with ``InvalidRequestError``, and every
  backend that failed at it is cleared: it is loaded again when its turn comes.
* When all suspects of a backend have passed, the backend is to blame and is used no more.
* When one of them ended before it was tried, nobody can know, and the backend is cleared.
* A call for no utterance (loading, warm-up, release) has no suspects: the backend is to blame.

Where no other backend is left, another instance of the one that failed stands in for it. What is loaded in place of
another must first do something harmless (``smoke_test`` of the checking shells): a backend that fails at everything is
found out there, and no request is blamed for it.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Any

from megatalker.engine.backend_role import Accusation, BackendRole
from megatalker.engine.guarded_calls import Fault
from megatalker.engine.utterance import Utterance
from megatalker.errors import InvalidRequestError

logger = logging.getLogger(__name__)

Everybody = Collection[Utterance]
"""All unfinished utterances."""


def blame(everybody: Everybody, role: BackendRole[Any], name: str, reason: str, served: Sequence[Utterance]) -> None:
    """Backend ``name`` failed in a call for ``served``: take it out, and find somebody to blame, now or later."""
    if not served:
        role.give_up(name, reason)
        drop_accusation(everybody, role, name)
    elif len(served) == 1 and served[0].is_suspect(role.kind):
        role.take_out(name, reason)
        _convict(everybody, role, name, reason, served[0])
    else:
        logger.warning("%s backend %s failed in a call for %d streams: %s", role.kind, name, len(served), reason)
        role.take_out(name, reason)
        role.accused[name] = Accusation(reason)
        for utterance in served:
            utterance.suspected.add((role.kind, name))


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
    if role.kind == "codec":
        culprit.drop_pending()
    culprit.end(
        "error",
        InvalidRequestError(
            f"this request makes {role.kind} backends fail and was ended alone ({what}); "
            "change its text, voice or sampling, and report it if they look ordinary"
        ),
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

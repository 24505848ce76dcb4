"""Test of whether speech can be understood: a recogniser's word errors, also for the same sound in disorder."""

import importlib.util
from collections.abc import Iterator

from megatalker.cli.verify.card import Check
from megatalker.engine import Engine
from megatalker_conformance.intelligibility import CONTROL_ERRORS, Examiner, Understood, speaker
from megatalker_conformance.recogniser import Recogniser
from megatalker_conformance.verify.subject import NotRunError, VerifySubject

LANGUAGE = "english"


def words(subject: VerifySubject) -> Iterator[Check]:
    """Digits and loose English words, in the first voice, with the checkpoint's own sampling."""
    if subject.listener is Recogniser and importlib.util.find_spec("pocketsphinx") is None:
        raise NotRunError("needs a recogniser: pip install 'megatalker[recogniser]', or name another with --recogniser")
    if LANGUAGE not in subject.checkpoint.config.languages:
        raise NotRunError("the texts are English, and the checkpoint does not list that language")
    if subject.checkpoint.config.variant == "base" and subject.recording is None:
        raise NotRunError("a base checkpoint says words in a cloned voice only: give --ref-audio and --ref-text")
    if subject.recording is not None:
        subject.require_official()
    mode = [mode for mode in subject.modes if mode.spoken][-1 if subject.recording is not None else 0]
    with Engine.open(subject.engine_settings, checkpoint=subject.checkpoint) as engine:
        engine.warmup()
        examiner = Examiner(speaker(engine, mode.voice), subject.listener)
        yield _judged(subject, f"digits, {mode.name}", examiner.digits())
        yield _judged(subject, f"loose words, {mode.name}", examiner.words())


def _judged(subject: VerifySubject, name: str, understood: Understood) -> Check:
    limit = subject.order.word_errors
    found = f"word error rate {understood.share:.1%} (at most {limit:.0%}); of the same frames in disorder "
    found += f"{understood.control:.0%} (more than {CONTROL_ERRORS:.0%}, or the recogniser hears what it expects)"
    good = understood.share <= limit and understood.control > CONTROL_ERRORS
    figures = {"word_errors": understood.share, "control": understood.control, "limit": limit}
    return Check("words", name, "passed" if good else "failed", found, figures)

"""Runs the parts of a report card, each to its end or to the reason why it cannot be run."""

from collections.abc import Callable, Iterator, Mapping

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.report import command_line, environment_of
from megatalker.cli.verify.card import Card, Check
from megatalker.cli.verify.order import PARTS, VerifyOptions
from megatalker.plugins.device import dtype_name
from megatalker.settings import Settings
from megatalker_conformance.verify.codec import codec
from megatalker_conformance.verify.configuration import configuration
from megatalker_conformance.verify.limits import limits
from megatalker_conformance.verify.prompts import cloning, prompts
from megatalker_conformance.verify.sampling import sampling
from megatalker_conformance.verify.speed import speed
from megatalker_conformance.verify.subject import NotRunError, VerifySubject
from megatalker_conformance.verify.talker import codes, sixteen_bit
from megatalker_conformance.verify.together import streams
from megatalker_conformance.verify.words import words

Part = Callable[[VerifySubject], Iterator[Check]]
_RUN: Mapping[str, Part] = {
    "configuration": configuration,
    "speed": speed,
    "prompts": prompts,
    "cloning": cloning,
    "codes": codes,
    "streams": streams,
    "sampling": sampling,
    "16-bit": sixteen_bit,
    "codec": codec,
    "words": words,
}


def verify(checkpoint: Checkpoint, settings: Settings, order: VerifyOptions, progress: Callable[[str], None]) -> Card:
    """All that can be found out here about a checkpoint.

    Args:
        checkpoint: open.
        settings: device, number format and which backends; all else is the backends' own.
        order: what is wanted.
        progress: told what is being done.

    Raises:
        MegatalkerError: a backend that was asked for cannot be had here, or the recording cannot be read.
    """
    subject = VerifySubject.open(checkpoint, settings, order)
    try:
        checks = [check for part in PARTS for check in _checks(part, subject, progress)]
        checks += limits(subject)
    finally:
        subject.close()
    environment = environment_of(checkpoint, subject.device, dtype_name(subject.dtype), subject.codec_backend.name)
    return Card(command_line(), {"backend": subject.talker_backend.name, **environment}, checks)


def _checks(part: str, subject: VerifySubject, progress: Callable[[str], None]) -> Iterator[Check]:
    if part in subject.order.skip:
        yield Check(part, "all", "not run", "left out by --skip")
        return
    progress(f"checking {part}")
    begun = False
    try:
        for check in _RUN[part](subject):
            progress(f"checking {part}: {check.name} {check.outcome}")
            begun = True
            yield check
    except NotRunError as error:
        yield Check(part, "the rest" if begun else "all", "not run", str(error))
    except Exception as error:  # whatever goes wrong in one part, the card has the others
        yield Check(part, "ran to its end", "failed", f"{type(error).__name__}: {error}")

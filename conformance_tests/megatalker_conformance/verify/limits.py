"""How far a verification has looked, and what it has not looked at."""

from collections.abc import Iterator

from megatalker.cli.verify.card import Check
from megatalker.plugins.device import dtype_name
from megatalker_conformance.verify.subject import VerifySubject

SEEN = (
    ("streams at once", "streams at once"),
    ("positions", "positions of a stream"),
    ("rows of a prompt", "rows of a prompt"),
    ("frames of a stream", "frames of a stream"),
    ("draws", "draws"),
    ("codec frames", "frames of the codec"),
    ("recordings", "recordings"),
)
"""Figures of the reach, and their names on the card."""
ALWAYS_UNSEEN = (
    "other devices, number formats and settings than those above",
    "how speech sounds, except for the words",
    "servers, protocols and adapters",
)


def limits(subject: VerifySubject) -> Iterator[Check]:
    """Say how far the parts that ran have looked, and what stays unseen."""
    reach = subject.reach
    seen = [f"{count:.0f} {name}" for key, name in SEEN if (count := reach.get(key))]
    yield Check("reach", "looked at", "info", "; ".join(seen) or "nothing of streams, draws or recordings", dict(reach))
    yield Check("reach", "not looked at", "info", "; ".join(_unseen(subject)))


def _unseen(subject: VerifySubject) -> Iterator[str]:
    reach, config = subject.reach, subject.checkpoint.config
    positions, codec = reach.get("positions"), reach.get("codec frames")
    most = config.talker.max_positions
    if not positions:
        yield "streams in company, and far positions"
    else:
        yield f"more than {reach['streams at once']:.0f} streams at once, and positions from {positions:.0f} to {most}"
    if not reach.get("draws"):
        yield "how codes are drawn"
    yield "the codec in long streams" if not codec else f"the codec past {codec:.0f} frames"
    if config.variant == "base":
        yield "other recordings than these, and cutting their silence" if reach.get("recordings") else "recordings"
    skipped = sorted(subject.order.skip)
    if skipped:
        yield f"the parts {', '.join(skipped)}"
    if subject.exact_dtype is None:
        yield f"{dtype_name(subject.dtype)} free of forced codes: single codes in company"
    yield from ALWAYS_UNSEEN

"""A plug-in of backends with one deliberate mistake each, and of healthy ones."""

from dataclasses import replace

from megatalker.interfaces import Availability, CodecBackend, TalkerBackend, TalkerDecoder
from megatalker.plugins import hookimpl
from mistakes import (
    code_groups,
    codec_life,
    codec_reach,
    codec_schedules,
    codecs,
    company,
    delays,
    late,
    life,
    numerics,
    rounded,
    rules,
    schedules,
    talkers,
)
from mistakes.catalogue import CATALOGUE, HEALTHY, Mistake

__all__ = [
    "CATALOGUE",
    "Mistake",
    "code_groups",
    "codec_life",
    "codec_reach",
    "codec_schedules",
    "codecs",
    "company",
    "delays",
    "late",
    "life",
    "numerics",
    "rounded",
    "rules",
    "schedules",
    "talkers",
]

_NOT_HERE = replace(
    HEALTHY[TalkerDecoder], name="not_here", probe=lambda *_: Availability("it needs a device of another kind")
)


@hookimpl
def megatalker_backends() -> list[TalkerBackend | CodecBackend]:
    return [*HEALTHY.values(), _NOT_HERE, *(mistake.backend for mistake in CATALOGUE)]

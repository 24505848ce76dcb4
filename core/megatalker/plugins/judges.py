"""The contract of a judge of speech, for ``megatalker verify --quality``.

A judge is described by a :class:`SpeechJudge`, which a plug-in returns from the hook ``megatalker_judges``. Loaded, it
is a function of one recording, ``[samples]`` float32 at 24 kHz within [-1, 1]:

- a ``recogniser`` returns the words that it hears, as text;
- a ``similarity`` judge returns an embedding of the speaker, ``[any]`` floats, whose cosine with another one counts;
- an ``opinion`` judge returns a score of how the recording sounds, larger for better.

It is called from one thread at a time, and its answer depends on the recording alone, not on those before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from megatalker.errors import PluginError

JUDGES_VERSION = 1
"""Version of this contract; a judge that was written for another is refused."""
JudgeKind = Literal["recogniser", "similarity", "opinion"]
KINDS: tuple[JudgeKind, ...] = ("recogniser", "similarity", "opinion")
Hearing = Callable[[npt.NDArray[np.float32]], Any]
"""A loaded judge."""


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Language, place and words that a judge is loaded for."""

    language: str
    """Language of all recordings, as checkpoints name it in lower case, such as ``english``."""
    device: torch.device
    vocabulary: frozenset[str] = frozenset()
    """All words that may be said. A recogniser may do without others."""
    model: str | None = None
    """The model that the judge should use, a folder or a name that its library knows; ``None``: its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechJudge:
    """Description of a judge."""

    name: str
    """A lower-case identifier."""
    kind: JudgeKind
    summary: str
    """One line."""
    version: Callable[[JudgeContext], str]
    """The program with its version, and the model, for the report. Judgements are kept until it, the module of ``load``
    or the preparation of recordings changes; a judge of several modules names its own version here, too."""
    probe: Callable[[JudgeContext], str | None]
    """Say why it cannot judge here and what would help, without loading anything heavy; ``None``: it can."""
    load: Callable[[JudgeContext], Hearing]
    rank: int = 0
    """The highest that can judge is taken by default; one below 0 only by name."""
    judges_version: int = JUDGES_VERSION


def checked_judge(judge: object, plugin: str) -> None:
    """Raises:
    PluginError: ``plugin`` returned something else than a judge, or one for another version or with a bad name.
    """
    if not isinstance(judge, SpeechJudge):
        raise PluginError(
            f"plug-in {plugin!r} returned {type(judge).__name__} from megatalker_judges, expected SpeechJudge"
        )
    if judge.judges_version != JUDGES_VERSION:
        raise PluginError(
            f"plug-in {plugin!r}: judge {judge.name!r} is written for version {judge.judges_version} of judges, "
            f"this megatalker has {JUDGES_VERSION}; upgrade the older side"
        )
    if judge.kind not in KINDS or not judge.name.isidentifier() or judge.name in ("auto", "none"):
        raise PluginError(
            f"plug-in {plugin!r}: {judge.kind} judge {judge.name!r} cannot be; expected one of the kinds "
            f"{', '.join(KINDS)} and an identifier other than 'auto' and 'none'"
        )

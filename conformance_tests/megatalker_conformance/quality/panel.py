"""The judges of one trial: chosen, loaded, and asked about recordings that they have not judged yet."""

import hashlib
import importlib.metadata
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatalker.errors import BackendUnavailableError, MalformedResultError, describe_error
from megatalker.plugins import BackendRegistry, recogniser_input
from megatalker.plugins.judges import Hearing, JudgeContext, JudgeKind, SpeechJudge
from megatalker.voices import reference_audio
from megatalker_conformance import recogniser
from megatalker_conformance.quality.judges import libraries

logger = logging.getLogger(__name__)
PREPARATION = (recogniser_input, libraries, recogniser, reference_audio)
"""Modules that prepare what judges hear."""


@dataclass(frozen=True)
class Seated:
    """A judge that is loaded."""

    name: str
    version: str
    """The judge's own, and a digest of how it hears: judgements are kept under both."""
    hear: Hearing

    def text(self, pcm: NDArray[np.float32]) -> str:
        """Ask a recogniser; raises ``MalformedResultError`` where its answer is no text."""
        answer = self.hear(pcm)
        if not isinstance(answer, str):
            raise MalformedResultError(f"recogniser {self.name!r} returned {type(answer).__name__}, expected str")
        return answer

    def embedding(self, pcm: NDArray[np.float32]) -> NDArray[np.float64]:
        """``[any]`` of length 1; raises ``MalformedResultError`` where the judge's answer has no direction."""
        answer = np.asarray(self.hear(pcm), float).ravel()
        size = float(np.linalg.norm(answer)) if answer.size else 0.0
        if not np.isfinite(size) or size == 0:
            raise MalformedResultError(f"similarity judge {self.name!r} returned no finite vector other than zero")
        return answer / size

    def score(self, pcm: NDArray[np.float32]) -> float:
        """Ask a judge of opinion; raises ``MalformedResultError`` where its answer is no finite number."""
        answer = float(self.hear(pcm))
        if not np.isfinite(answer):
            raise MalformedResultError(f"opinion judge {self.name!r} returned {answer}, expected a finite number")
        return answer


def seat(registry: BackendRegistry, kind: JudgeKind, wanted: str | None, place: JudgeContext) -> Seated | None:
    """Load a judge.

    Args:
        registry: with all judges.
        kind: of the judge.
        wanted: ``NAME`` or ``NAME:MODEL``; ``None``: the best that can be loaded, and the log says why those before it
            cannot; ``none``: no judge, for which ``None`` is returned.
        place: language, device and vocabulary.

    Raises:
        BackendNotFoundError: no such judge is installed.
        BackendUnavailableError: it cannot judge here, with the reason; or none can, with all reasons.
    """
    if wanted == "none":
        return None
    name, _, model = (wanted or "").partition(":")
    context = replace(place, model=model or None)
    judges = [registry.judge(kind, name)] if name else [each for each in registry.judges(kind) if each.rank >= 0]
    reasons: list[str] = []
    for judge in judges:
        found = _loaded(judge, context)
        if isinstance(found, Seated):
            logger.info("%s: %s, %s%s", kind, judge.name, found.version, _passed_over(reasons))
            return found
        reasons.append(f"{judge.name}: {found}")
    raise BackendUnavailableError(f"no {kind} judge can judge here: {'; '.join(reasons) or 'none is installed'}")


def _loaded(judge: SpeechJudge, context: JudgeContext) -> Seated | str:
    """The judge, or the reason why it cannot judge."""
    try:
        reason = judge.probe(context)
        if reason is not None:
            return reason
        version = f"{judge.version(context)}, hears by {digest_of_hearing(judge, context)}"
        return Seated(judge.name, version, judge.load(context))
    except Exception as error:  # a stranger's judge, and libraries that download, may fail in any way
        return describe_error(error).splitlines()[0]


def digest_of_hearing(judge: SpeechJudge, context: JudgeContext) -> str:
    """Eight digits of all that its answers depend on besides its own version: its module, which has its settings, the
    modules and the resampler that prepare recordings, and the words that it may hear.
    """
    files = [getattr(module, "__file__", None) for module in (inspect.getmodule(judge.load), *PREPARATION)]
    sources = [Path(file).read_bytes() for file in files if file is not None]
    known = " ".join([importlib.metadata.version("soxr"), *sorted(context.vocabulary)])
    return hashlib.sha256(b"".join([*sources, known.encode()])).hexdigest()[:8]


def _passed_over(reasons: Sequence[str]) -> str:
    return f"; passed over {'; '.join(reasons)}" if reasons else ""

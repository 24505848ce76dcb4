"""Registers the judges that come along; the entry point names this module."""

from megatalker.plugins import hookimpl
from megatalker.plugins.judges import SpeechJudge
from megatalker_conformance.quality.judges.deepgram import DEEPGRAM
from megatalker_conformance.quality.judges.opinion import OPINION
from megatalker_conformance.quality.judges.recognisers import RECOGNISERS
from megatalker_conformance.quality.judges.similarity import SIMILARITY


@hookimpl
def megatalker_judges() -> list[SpeechJudge]:
    return [*RECOGNISERS, DEEPGRAM, *SIMILARITY, *OPINION]

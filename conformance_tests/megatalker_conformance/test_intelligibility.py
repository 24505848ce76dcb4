"""Can the voice be understood? Judged by an independent recogniser on text that the demo voice was not trained on."""

import importlib.util
from collections.abc import Iterator

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.plugins.checked import CheckedTalker
from megatalker.voices import Voice, list_speakers
from megatalker_conformance.cases import conformance_voice
from megatalker_conformance.engine_harness import EngineHarness
from megatalker_conformance.intelligibility import (
    CONTROL_ERRORS,
    CONTROL_TOLD,
    DIGIT_ERRORS,
    DIGIT_STRINGS,
    SENTENCES_TOLD,
    WORD_ERRORS,
    WORD_ROWS,
    Examiner,
    speaker,
)
from megatalker_conformance.measure import Measure
from megatalker_conformance.recording import Log

pytestmark = pytest.mark.optional

_VOICES = 3


@pytest.fixture
def engine(engine_harness: EngineHarness, checkpoint: Checkpoint) -> Iterator[Engine]:
    if importlib.util.find_spec("pocketsphinx") is None:
        pytest.skip("needs the recogniser: pip install pocketsphinx")
    if checkpoint.name == "tiny":
        pytest.skip("random weights say nothing; run with --checkpoint demo")
    with engine_harness.engine(Log()) as engine:
        yield engine


@pytest.fixture(params=range(1, 1 + _VOICES), ids="voice {}".format)
def examined(request: pytest.FixtureRequest, engine: Engine, checkpoint: Checkpoint) -> tuple[str, Examiner]:
    """One of the first speakers by name, with the checkpoint's own sampling."""
    speakers = list_speakers(checkpoint)
    voices = [Voice.named(name) for name in speakers] or [conformance_voice(checkpoint)]
    if request.param > len(voices):
        pytest.skip(f"the checkpoint has {len(voices)} voices")
    voice = voices[request.param - 1]
    return voice.speaker or voice.kind, Examiner(speaker(engine, voice))


def _limit(share: float, words: int, talker: CheckedTalker) -> float:
    """The bar; with rounded weights two standard deviations of a share of ``words`` words above it."""
    noise = 0.0 if talker.capabilities.weight_bits is None else 2 * (share * (1 - share) / words) ** 0.5
    return share + noise


def test_digits_are_understood(examined: tuple[str, Examiner], measure: Measure, talker: CheckedTalker) -> None:
    name, examiner = examined
    understood = examiner.digits()
    assert understood.control > CONTROL_ERRORS, f"{name}: the recogniser hears digits in disorder"
    measure(f"word errors, digits, {name}", understood.share, _limit(DIGIT_ERRORS, 5 * len(DIGIT_STRINGS), talker))


def test_words_are_understood(examined: tuple[str, Examiner], measure: Measure, talker: CheckedTalker) -> None:
    name, examiner = examined
    understood = examiner.words()
    assert understood.control > CONTROL_ERRORS, f"{name}: the recogniser hears words in disorder"
    measure(f"word errors, words, {name}", understood.share, _limit(WORD_ERRORS, 5 * len(WORD_ROWS), talker))


def test_sentences_are_told_apart(examined: tuple[str, Examiner], measure: Measure) -> None:
    name, examiner = examined
    understood = examiner.sentences()
    assert understood.control < CONTROL_TOLD, f"{name}: the recogniser tells sentences apart in disorder"
    measure(f"sentences not told apart, {name}", 1 - understood.share, 1 - SENTENCES_TOLD)

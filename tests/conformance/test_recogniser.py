"""The recogniser that intelligibility is judged by."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from megatalker_conformance.intelligibility import WORDS, disordered
from megatalker_conformance.recogniser import Recogniser

SPEECH = Path(__file__).parents[2] / "docs/demo.wav"


def test_the_words_do_not_depend_on_what_was_heard_before() -> None:
    """Sound in disorder is near to several words: which one it becomes shows the smallest difference."""
    pytest.importorskip("pocketsphinx")
    speech, rate = soundfile.read(SPEECH, dtype="float32")
    assert rate == 24_000
    sounds = [speech, speech[::-1], disordered(speech)]
    noise = (0.3 * np.random.default_rng(0).standard_normal(2 * rate)).astype(np.float32)
    with Recogniser(WORDS) as recogniser:
        first = [recogniser.hear(sound) for sound in sounds]
        recogniser.hear(noise)
        again = [recogniser.hear(sound) for sound in reversed(sounds)]
    assert all(first)
    assert again[::-1] == first

"""Checkpoints of other shapes, and with activations at the ends of a range."""

from collections.abc import Callable

import pytest

from megatalker_conformance.cases import LAYOUTS, SENTENCES, Cases
from megatalker_conformance.measure import Measure
from megatalker_conformance.places import FrameExaminer
from megatalker_conformance.special import EXTREME, FEW_CODES, GROUPED, MANY_CODES, NARROW

FRAMES = 4


@pytest.mark.parametrize("name", [NARROW, GROUPED, EXTREME, FEW_CODES, MANY_CODES])
def test_models_of_every_kind_speak_as_reference(
    examine_special: Callable[[str], tuple[FrameExaminer, Cases]], measure: Measure, name: str
) -> None:
    """The predictor narrower than the talker and behind a projection; other groups of heads, widths, vocabularies and
    stored types; norms of faint activations, where epsilon counts, and attention whose scores overflow; fewer and more
    codes in a frame than sixteen.
    """
    examine, cases = examine_special(name)
    for layout in LAYOUTS:
        stream = examine.streams.start(cases.prompt(SENTENCES[0], layout, examine.sampling))
        for _ in range(FRAMES):
            examine(stream)
        examine.streams.release(stream)
    examine.finish(measure)

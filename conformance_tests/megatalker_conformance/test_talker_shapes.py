"""Whatever checkpoint the run is about: shapes of other published models, and activations at the ends of a range."""

from collections.abc import Callable

import pytest

from megatalker_conformance.measure import Measure
from megatalker_conformance.places import Examiner
from megatalker_conformance.special import EXTREME, GROUPED, NARROW
from megatalker_conformance.utterances import LAYOUTS, SENTENCES, Utterances

FRAMES = 4


@pytest.mark.parametrize("name", [NARROW, GROUPED, EXTREME])
def test_models_of_every_kind_speak_as_reference(
    examine_special: Callable[[str], tuple[Examiner, Utterances]], measure: Measure, name: str
) -> None:
    """The predictor narrower than the talker and behind a projection; other groups of heads, widths, vocabularies and
    stored types; norms of faint activations, where epsilon counts, and attention whose scores overflow.
    """
    examine, utterances = examine_special(name)
    for layout in LAYOUTS:
        stream = examine.streams.start(utterances.prompt(SENTENCES[0], layout, examine.sampling))
        for _ in range(FRAMES):
            examine(stream)
        examine.streams.release(stream)
    examine.finish(measure)

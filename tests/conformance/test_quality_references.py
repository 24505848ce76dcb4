"""Judges' figures on recordings of people, whose words and speakers are known; see ``quality_references``."""

import importlib.util

import pytest

import quality_references

pytest.importorskip("zhon", reason="needs the extra quality")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not quality_references.FOLDER.is_dir(), reason="needs Debian's package pocketsphinx-testdata"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@needs("pocketsphinx")
def test_pocketsphinx_hears_what_was_said_and_nothing_else() -> None:
    found = quality_references.recognised()
    assert (found["librivox"]["words"], found["cards"]["words"]) == (71, 21)
    assert found["cards"]["errors"] <= 1
    assert found["librivox"]["errors"] <= 15
    for speaker in quality_references.SPEAKERS:
        assert found[speaker]["errors against the next text"] > 0.9 * found[speaker]["words"]


@needs("resemblyzer")
def test_resemblyzer_tells_the_two_speakers_apart() -> None:
    found = quality_references.compared()
    assert (found["same speaker"]["pieces"], found["different speakers"]["pieces"]) == (20, 25)
    assert found["same speaker"]["mean"] - found["different speakers"]["mean"] > 0.1
    assert found["share of comparisons in which the same speaker is more similar"] > 0.9


def test_silence_and_clipping_are_found_where_they_were_put() -> None:
    found = quality_references.sounds()
    recorded, later = (
        found[name] for name in ("silence before speech, s", "the same, half a second of silence put before")
    )
    assert {name: later[name] - recorded[name] for name in ("least", "mean", "most")} == pytest.approx(
        {"least": 0.5, "mean": 0.5, "most": 0.5}
    )
    assert (found["clipped"], found["clipped, 20 times as loud"]) == (0, 10)
    assert (found["silent"], found["silent, a millionth as loud"]) == (0, 10)

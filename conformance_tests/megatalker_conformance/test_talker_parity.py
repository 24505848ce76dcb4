"""Free-running token parity: all 16 codes of every frame, greedy and sampled."""

import pytest

from megatalker.sampling import SamplingParams
from megatalker_conformance.cases import LAYOUTS, SENTENCES, Cases, Layout
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.official import Official
from megatalker_conformance.precision import first_divergence
from megatalker_conformance.streams import GREEDY, SuiteStreams


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_codes_equal_the_official_generate(
    streams: SuiteStreams,
    cases: Cases,
    official: Official,
    exact_arithmetic: None,
    exact_weights: None,
    frames: int,
    layout: Layout,
) -> None:
    expected = official.codes(SENTENCES[0], layout, frames)
    found = streams.say(cases.prompt(SENTENCES[0], layout, GREEDY), frames)
    divergence = first_divergence(found, expected)
    assert divergence is None, f"parts from the official generate() at {divergence}"
    assert len(found) == frames, (
        f"this checkpoint speaks {len(found)} frames of {SENTENCES[0]!r}, too few to show parity"
    )


def test_greedy_codes_equal_reference(streams: SuiteStreams, cases: Cases, judge: Judge, frames: int) -> None:
    case = cases.prompt(SENTENCES[1], "interleaved", judge.greedy)
    judge(case, streams.say(case, frames), frames)


@pytest.mark.parametrize("seed", [1, 2, 2**64 - 1])
def test_sampled_codes_equal_reference(
    streams: SuiteStreams,
    cases: Cases,
    judge: Judge,
    exact_arithmetic: None,
    exact_weights: None,
    frames: int,
    seed: int,
) -> None:
    require(streams.decoder.capabilities, "seeded_sampling")
    sampling = SamplingParams(seed=seed, min_new_tokens=frames)
    case = cases.prompt(SENTENCES[0], "interleaved", sampling)
    judge(case, streams.say(case, frames), frames)


def test_each_frame_takes_the_text_row_of_its_own_step(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    """Text that arrives while speaking counts from the next frame on: no frame is computed ahead of its text."""
    early = cases.prompt(SENTENCES[0], "interleaved", judge.manner)
    late = cases.with_text_changed_at(early, frame=5)
    judge(late, streams.say(late, 10), 10)

"""Free-running token parity: all 16 codes of every frame, greedy and sampled."""

import pytest

from megatalker.sampling import SamplingParams
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.official import Official
from megatalker_conformance.precision import first_divergence
from megatalker_conformance.speech import GREEDY, Streams
from megatalker_conformance.utterances import LAYOUTS, SENTENCES, Layout, Utterances


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_codes_equal_the_official_generate(
    streams: Streams, utterances: Utterances, official: Official, exact_arithmetic: None, frames: int, layout: Layout
) -> None:
    expected = official.codes(SENTENCES[0], layout, frames)
    found = streams.say(utterances.prompt(SENTENCES[0], layout, GREEDY), frames)
    divergence = first_divergence(found, expected)
    assert divergence is None, f"parts from the official generate() at {divergence}"
    assert len(found) == frames, (
        f"this checkpoint speaks {len(found)} frames of {SENTENCES[0]!r}, too few to show parity"
    )


def test_greedy_codes_equal_reference(streams: Streams, utterances: Utterances, judge: Judge, frames: int) -> None:
    utterance = utterances.prompt(SENTENCES[1], "interleaved", judge.greedy)
    judge(utterance, streams.say(utterance, frames), frames)


@pytest.mark.parametrize("seed", [1, 2, 2**64 - 1])
def test_sampled_codes_equal_reference(
    streams: Streams, utterances: Utterances, judge: Judge, exact_arithmetic: None, frames: int, seed: int
) -> None:
    require(streams.decoder.capabilities, "seeded_sampling")
    sampling = SamplingParams(seed=seed, min_new_tokens=frames)
    utterance = utterances.prompt(SENTENCES[0], "interleaved", sampling)
    judge(utterance, streams.say(utterance, frames), frames)


def test_each_frame_takes_the_text_row_of_its_own_step(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    """Text that arrives while speaking counts from the next frame on: no frame is computed ahead of its text."""
    early = utterances.prompt(SENTENCES[0], "interleaved", judge.manner)
    late = utterances.with_text_changed_at(early, frame=5)
    judge(late, streams.say(late, 10), 10)

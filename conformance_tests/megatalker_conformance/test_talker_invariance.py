"""Load independence: where the capabilities promise it, width, place and neighbours change no bit of a stream."""

import pytest
import torch

from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.promises import BATCH_INVARIANCE
from megatalker_conformance.schedule_plans import of_widths
from megatalker_conformance.streams import SuiteStreams
from megatalker_conformance.talker_executor import BitComparison
from megatalker_conformance.talker_harness import TalkerHarness

WIDTHS = (2, 3, 5, 8, 17, 33, 64)
AGES = (1, 2, 20, 70)
"""Frames after which a stream is continued."""
AFTERWARDS = 8
"""Frames that are compared after that."""


def test_width_place_and_neighbours_change_no_bit(harness: TalkerHarness) -> None:
    """Prompts that come together included."""
    require(harness.talker.capabilities, "batch_invariant")
    probes = harness.pool.going[1::3]
    executor = harness.executor(harness.talker)
    comparison = BitComparison({scenario: executor.alone(scenario) for scenario in probes})
    house = harness.house
    widths = [house, *(width for width in WIDTHS if width < house), house]
    harness.hold_to(of_widths(harness.writer("bits", house), widths, probes), BATCH_INVARIANCE, comparison)


@pytest.mark.parametrize("age", AGES)
def test_a_continued_stream_has_the_same_bits(streams: SuiteStreams, cases: Cases, judge: Judge, age: int) -> None:
    """So it goes on in another process, or in a slot that it gets back, and nobody hears it."""
    require(streams.decoder.capabilities, "exact_continuation")
    require(streams.decoder.capabilities, "forced_codes")
    case = cases.prompt(SENTENCES[0], "interleaved", judge.manner)
    frames = streams.follow(case, [None] * (age + AFTERWARDS))
    emitted = [frame.codes for frame in frames[:age] if frame.codes is not None]
    assert len(emitted) == age, f"the stream ended after {len(emitted)} frames, expected it to go on for {age}"
    other = cases.prompt(SENTENCES[1], "interleaved", judge.manner)
    again = streams.resume_beside(other, case, emitted, cases.emitted_rows(case, emitted))
    for number, expected in enumerate(frames[age:], age):
        (found,) = streams.advance(again, return_logits=True)
        assert found.codes == expected.codes, f"frame {number}"
        for name in ("talker", "predictor"):
            assert torch.equal(getattr(found.logits, name), getattr(expected.logits, name)), f"frame {number}: {name}"

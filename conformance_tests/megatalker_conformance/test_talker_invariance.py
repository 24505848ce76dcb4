"""Load independence: where the capabilities promise it, width, place and neighbours change no bit of a stream."""

import torch

from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.promises import BATCH_INVARIANCE
from megatalker_conformance.schedule_plans import of_widths
from megatalker_conformance.streams import SuiteStreams
from megatalker_conformance.talker_executor import BitComparison
from megatalker_conformance.talker_harness import TalkerHarness

WIDTHS = (2, 3, 5, 8, 17, 33, 64)
REPEATED, AFTERWARDS = 20, 8
"""Frames that are decoded again, and frames after them."""


def test_width_place_and_neighbours_change_no_bit(harness: TalkerHarness) -> None:
    """Prompts that come together included."""
    require(harness.talker.capabilities, "batch_invariant")
    probes = harness.pool.going[1::3]
    executor = harness.executor(harness.talker)
    comparison = BitComparison({scenario: executor.alone(scenario) for scenario in probes})
    house = harness.house
    widths = [house, *(width for width in WIDTHS if width < house), house]
    harness.hold_to(of_widths(harness.writer("bits", house), widths, probes), BATCH_INVARIANCE, comparison)


def test_frames_decoded_again_leave_the_same_bits(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    """So a stream goes on in another process, or in a slot that it gets back: forced frames, in other company."""
    require(streams.decoder.capabilities, "batch_invariant")
    require(streams.decoder.capabilities, "forced_codes")
    case = cases.prompt(SENTENCES[0], "interleaved", judge.manner)
    first = streams.follow(case, [None] * (REPEATED + AFTERWARDS))
    again, other = streams.start_together(case, cases.prompt(SENTENCES[1], "interleaved", judge.manner))
    for frame in first[:REPEATED]:
        streams.advance(again, other, forced=frame.codes)
    for number, expected in enumerate(first[REPEATED:], REPEATED):
        found, *_ = streams.advance(again, other, return_logits=True)
        assert found.codes == expected.codes, f"frame {number}"
        for name in ("talker", "predictor"):
            assert torch.equal(getattr(found.logits, name), getattr(expected.logits, name)), f"frame {number}: {name}"

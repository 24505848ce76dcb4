"""Load independence: where the capabilities promise it, width, place and neighbours change no bit of a stream."""

from megatalker_conformance.checks import require
from megatalker_conformance.promises import BATCH_INVARIANCE
from megatalker_conformance.schedule_plans import of_widths
from megatalker_conformance.talker_executor import BitComparison
from megatalker_conformance.talker_harness import TalkerHarness

WIDTHS = (2, 3, 5, 8, 17, 33, 64)


def test_width_place_and_neighbours_change_no_bit(harness: TalkerHarness) -> None:
    """Prompts that come together included."""
    require(harness.talker.capabilities, "batch_invariant")
    probes = harness.pool.going[1::3]
    executor = harness.executor(harness.talker)
    comparison = BitComparison({scenario: executor.alone(scenario) for scenario in probes})
    house = harness.house
    widths = [house, *(width for width in WIDTHS if width < house), house]
    harness.hold_to(of_widths(harness.writer("bits", house), widths, probes), BATCH_INVARIANCE, comparison)

"""Load independence: where the capabilities promise it, width, place and neighbours change no bit of a stream."""

from megatalker_conformance.checks import require
from megatalker_conformance.playing import BitRule
from megatalker_conformance.promises import BATCH_INVARIANCE
from megatalker_conformance.schedules import of_widths
from megatalker_conformance.stage import Stage

WIDTHS = (2, 3, 5, 8, 17, 33, 64)


def test_width_place_and_neighbours_change_no_bit(stage: Stage) -> None:
    """Prompts that come together included."""
    require(stage.talker.capabilities, "batch_invariant")
    probes = stage.pool.going[1::3]
    player = stage.player(stage.talker)
    rule = BitRule({script: player.alone(script) for script in probes})
    house = stage.house
    widths = [house, *(width for width in WIDTHS if width < house), house]
    stage.hold_to(of_widths(stage.writer("bits", house), widths, probes), BATCH_INVARIANCE, rule)

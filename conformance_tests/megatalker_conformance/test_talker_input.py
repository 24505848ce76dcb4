"""A talker decoder's results for unusual input that its shell accepts."""

import pytest

from megatalker_conformance.cases import Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.measure import Measure
from megatalker_conformance.places import FrameExaminer
from megatalker_conformance.streams import SuiteStreams

REMAINDERS = range(65, 129)
"""Rows: every remainder of a tile of 64, above one."""


def test_prompts_of_every_remainder_are_right(examine: FrameExaminer, cases: Cases, measure: Measure) -> None:
    """Prompt lengths leave every remainder, so that the last tile of any tiling is filled to every height."""
    streams = examine.streams
    for rows in REMAINDERS:
        if rows < streams.decoder.max_positions:
            stream = streams.start(cases.rows(rows, examine.sampling))
            examine(stream)
            streams.release(stream)
    examine.finish(measure)


@pytest.mark.parametrize("rows", [2, 3, 17, 64, 130])
def test_prompts_of_any_length_are_accepted(streams: SuiteStreams, cases: Cases, judge: Judge, rows: int) -> None:
    case = cases.rows(rows, judge.manner)
    judge(case, streams.say(case, 4), 4)

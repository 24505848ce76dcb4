"""Release, reuse and cancel: a row given back is as good as new, at any moment of its stream's life."""

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.streams import SuiteStreams

MANY = 40
"""Streams one after another: more than any small table of rows holds."""


def test_nothing_of_a_stream_stays_in_its_row(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    """A long case first, then a short one that must not see its keys, its history or its noise."""
    streams.say(cases.rows(64, judge.manner), 12)
    case = cases.prompt(SENTENCES[2], "interleaved", judge.manner)
    judge(case, streams.say(case, 12), 12)


def test_released_rows_are_used_again(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    limit = streams.decoder.max_streams or MANY
    case = cases.rows(4, judge.manner)
    for _ in range(2 * limit + 1):
        streams.release(streams.start(case))
    judge(case, streams.say(case, 3), 3)


def test_a_full_house_refuses_and_recovers(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    limit = streams.decoder.max_streams
    if limit is None or limit > 256:
        pytest.skip("the backend names no limit of streams that a test can reach")
    case = cases.rows(4, judge.manner)
    house = streams.start_together(*[case] * limit)
    for _ in range(2):
        with pytest.raises(CapacityError):
            streams.start(case)
    streams.release(house.pop())
    house.append(streams.start(case))
    streams.advance(*house)
    for stream in house:
        judge(case, stream.codes, 1)


def test_an_ended_stream_keeps_its_row_until_released(
    streams: SuiteStreams, cases: Cases, judge: Judge, checkpoint: Checkpoint
) -> None:
    if not streams.decoder.capabilities.forced_codes:
        pytest.skip("ending a stream at will needs forced_codes")
    config = checkpoint.config
    stream = streams.start(cases.rows(4, judge.manner))
    streams.advance(stream, forced=[config.codec_eos_id] + [0] * (config.num_code_groups - 1))
    with pytest.raises(InvalidRequestError):
        streams.advance(stream)
    streams.release(stream)
    with pytest.raises(InvalidRequestError):
        streams.decoder.release(stream.handle)


def test_handles_are_never_used_again(streams: SuiteStreams, cases: Cases, judge: Judge) -> None:
    case = cases.rows(4, judge.manner)
    handles = []
    for _ in range(5):
        stream = streams.start(case)
        handles.append(stream.handle)
        streams.release(stream)
    assert len(set(handles)) == len(handles)

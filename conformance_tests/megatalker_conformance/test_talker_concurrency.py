"""Isolation: a stream's codes do not depend on the other streams, whether they share a call with it or not."""

import pytest

from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.streams import StreamCase, SuiteStream, SuiteStreams


@pytest.fixture
def crowd(streams: SuiteStreams, cases: Cases, judge: Judge) -> list[StreamCase]:
    """Up to five cases of different lengths and seeds."""
    count = min(5, streams.decoder.max_streams or 5)
    if count < 2:
        pytest.skip("the backend holds one stream at a time")
    crowd = [cases.prompt(text, "interleaved", judge.manner) for text in SENTENCES[:count]]
    if not judge.manner.do_sample:
        return crowd
    return [case.sampled(seed=seed) for seed, case in enumerate(crowd)]


def test_streams_that_start_and_end_at_different_times_do_not_disturb_each_other(
    streams: SuiteStreams, judge: Judge, crowd: list[StreamCase]
) -> None:
    lengths = [8 + 2 * index for index in range(len(crowd))]
    waiting, tick = list(zip(crowd, lengths, strict=True)), 0
    running: list[tuple[SuiteStream, int]] = []
    finished: list[tuple[SuiteStream, int]] = []
    while waiting or running:
        if waiting and tick % 3 == 0:
            case, length = waiting.pop(0)
            running.append((streams.start(case), length))
        streams.advance(*(stream for stream, _ in running))
        for stream, length in list(running):
            if len(stream.codes) == length:
                streams.release(stream)
                running.remove((stream, length))
                finished.append((stream, length))
        tick += 1
    for stream, length in finished:
        judge(stream.case, stream.codes, length)

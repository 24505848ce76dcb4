"""Isolation: a stream's codes do not depend on its neighbours, nor on who shares a call with it."""

import pytest

from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Stream, Streams, Utterance
from megatalker_conformance.utterances import SENTENCES, Utterances


@pytest.fixture
def crowd(streams: Streams, utterances: Utterances, judge: Judge) -> list[Utterance]:
    """Up to five utterances of different lengths and seeds."""
    count = min(5, streams.decoder.max_streams or 5)
    if count < 2:
        pytest.skip("the backend holds one stream at a time")
    crowd = [utterances.prompt(text, "interleaved", judge.manner) for text in SENTENCES[:count]]
    if not judge.manner.do_sample:
        return crowd
    return [utterance.sampled(seed=seed) for seed, utterance in enumerate(crowd)]


def test_streams_that_start_and_end_at_different_times_do_not_disturb_each_other(
    streams: Streams, judge: Judge, crowd: list[Utterance]
) -> None:
    lengths = [8 + 2 * index for index in range(len(crowd))]
    waiting, tick = list(zip(crowd, lengths, strict=True)), 0
    running: list[tuple[Stream, int]] = []
    finished: list[tuple[Stream, int]] = []
    while waiting or running:
        if waiting and tick % 3 == 0:
            utterance, length = waiting.pop(0)
            running.append((streams.start(utterance), length))
        streams.advance(*(stream for stream, _ in running))
        for stream, length in list(running):
            if len(stream.codes) == length:
                streams.release(stream)
                running.remove((stream, length))
                finished.append((stream, length))
        tick += 1
    for stream, length in finished:
        judge(stream.utterance, stream.codes, length)

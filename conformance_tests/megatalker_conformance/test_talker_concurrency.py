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


def test_the_company_and_order_of_a_call_do_not_matter(streams: Streams, judge: Judge, crowd: list[Utterance]) -> None:
    group = [streams.start(utterance) for utterance in crowd]
    first = group[0]
    streams.advance(*group)
    streams.advance(*reversed(group))
    streams.advance(first)
    streams.advance(group[-1], first)
    streams.advance(*group[1:])
    streams.advance(*group)
    for stream in group:
        judge(stream.utterance, stream.codes, len(stream.codes))


def test_prefill_between_two_frames_of_a_neighbour_changes_nothing(
    streams: Streams, judge: Judge, crowd: list[Utterance]
) -> None:
    stream = streams.start(crowd[0])
    for utterance in crowd[1:]:
        streams.advance(stream)
        streams.start(utterance)
    judge(crowd[0], streams.run(stream, 4), len(crowd) + 3)


def test_prompts_that_come_together_begin_as_each_alone(streams: Streams, judge: Judge, crowd: list[Utterance]) -> None:
    """One call for all but the last, and one for the last while they run."""
    group = streams.start_together(*crowd[:-1])
    streams.advance(*group)
    group += streams.start_together(crowd[-1])
    for _ in range(3):
        streams.advance(*group)
    for stream in group:
        judge(stream.utterance, stream.codes, len(stream.codes))


def test_equal_requests_side_by_side_give_equal_codes(streams: Streams, judge: Judge, crowd: list[Utterance]) -> None:
    twins = [streams.start(crowd[0]) for _ in crowd]
    for _ in range(6):
        streams.advance(*twins)
    for twin in twins:
        judge(crowd[0], twin.codes, 6)

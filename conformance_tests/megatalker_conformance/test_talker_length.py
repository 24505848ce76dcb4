"""Long prompts, long streams, and the end of the positions."""

import pytest

from megatalker.errors import CapacityError
from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Streams
from megatalker_conformance.utterances import SENTENCES, Utterances

LONG_PROMPT = 500
LONG_STREAM = 135
REACHABLE = 10_000
"""Positions up to which filling them is a matter of one prompt."""


@pytest.fixture
def limit(streams: Streams) -> int:
    limit = streams.decoder.max_positions
    if limit > REACHABLE:
        pytest.skip("the backend has more positions than a test can fill")
    return limit


def test_codes_stay_right_after_several_hundred_prompt_rows(
    streams: Streams, utterances: Utterances, judge: Judge
) -> None:
    if streams.decoder.max_positions < LONG_PROMPT + 12:
        pytest.skip("the backend has too few positions; the limits are tested on their own")
    utterance = utterances.rows(LONG_PROMPT, judge.manner)
    judge(utterance, streams.say(utterance, 12), 12)


def test_codes_stay_right_through_a_long_stream(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    utterance = utterances.prompt(SENTENCES[2], "interleaved", judge.manner)
    if streams.decoder.max_positions < len(utterance.embeds) + LONG_STREAM:
        pytest.skip("the backend has too few positions; the limits are tested on their own")
    judge(utterance, streams.say(utterance, LONG_STREAM), LONG_STREAM)


def test_a_prompt_beyond_the_positions_is_refused(
    streams: Streams, utterances: Utterances, judge: Judge, limit: int
) -> None:
    house = streams.decoder.max_streams or 8
    for _ in range(house + 1):  # one row held for each refusal would run out here
        with pytest.raises(CapacityError):
            streams.start(utterances.rows(limit + 1, judge.manner))
    utterance = utterances.rows(4, judge.manner)
    judge(utterance, streams.say(utterance, 2), 2)


def test_the_last_position_is_usable_and_the_next_is_refused(
    streams: Streams, utterances: Utterances, judge: Judge, limit: int
) -> None:
    full = streams.start(utterances.rows(limit - 2, judge.manner))
    streams.run(full, 2)
    assert len(full.codes) == 2
    with pytest.raises(CapacityError):
        streams.advance(full)
    streams.release(full)
    utterance = utterances.rows(4, judge.manner)
    judge(utterance, streams.say(utterance, 2), 2)

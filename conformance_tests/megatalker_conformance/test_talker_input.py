"""What a talker decoder makes of what its shell lets through."""

import pytest

from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Streams
from megatalker_conformance.utterances import Utterances


@pytest.mark.parametrize("rows", [2, 3, 17, 64, 130])
def test_prompts_of_any_length_are_accepted(streams: Streams, utterances: Utterances, judge: Judge, rows: int) -> None:
    utterance = utterances.rows(rows, judge.manner)
    judge(utterance, streams.say(utterance, 4), 4)

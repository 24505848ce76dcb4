"""What a talker decoder makes of what its shell lets through."""

from dataclasses import replace

import pytest

from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Streams
from megatalker_conformance.utterances import SENTENCES, Utterances


@pytest.mark.parametrize("rows", [2, 3, 17, 64, 130])
def test_prompts_of_any_length_are_accepted(streams: Streams, utterances: Utterances, judge: Judge, rows: int) -> None:
    utterance = utterances.rows(rows, judge.manner)
    judge(utterance, streams.say(utterance, 4), 4)


def test_prompts_may_come_in_another_float_type(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    utterance = utterances.rows(17, judge.manner)
    double = replace(utterance, embeds=utterance.embeds.double(), trailing=utterance.trailing.double())
    judge(utterance, streams.say(double, 4), 4)


def test_inputs_are_copied(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    utterance = utterances.prompt(SENTENCES[0], "interleaved", judge.manner)
    scratch = replace(utterance, embeds=utterance.embeds.clone(), trailing=utterance.trailing.clone())
    stream = streams.start(scratch)
    scratch.embeds.fill_(7.0)
    for frame in range(6):
        streams.advance(stream)
        scratch.trailing[frame].fill_(7.0)
    judge(utterance, stream.codes, 6)

"""A frame may be begun first and waited for later: the engine does nothing else."""

import pytest

from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamHandle
from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Streams
from megatalker_conformance.utterances import SENTENCES, Utterances

FRAMES = 6


def test_frames_that_were_begun_are_those_of_decode(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    said = [utterances.prompt(text, "interleaved", judge.manner) for text in SENTENCES[:2]]
    running = [streams.start(utterance) for utterance in said[: streams.decoder.capabilities.max_streams]]
    for frame in range(FRAMES):
        if frame % 3 == 2:
            streams.advance(*running)
        else:
            streams.begin(*running)()
    for stream in running:
        judge(stream.utterance, stream.codes, FRAMES)


def test_a_step_that_cannot_begin_leaves_the_others_where_they_were(
    streams: Streams, utterances: Utterances, judge: Judge
) -> None:
    utterance = utterances.prompt(SENTENCES[0], "interleaved", judge.manner)
    stream = streams.start(utterance)
    streams.begin(stream)()
    with pytest.raises(InvalidRequestError):
        streams.decoder.begin([stream.step(), DecodeStep(StreamHandle(10**9), utterance.pad)])()
    judge(utterance, streams.run(stream, FRAMES - 1), FRAMES)

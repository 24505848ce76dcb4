"""What a talker decoder accepts, and how it refuses the rest: before anything has changed."""

from dataclasses import replace

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest
from megatalker.sampling import SamplingParams
from megatalker_conformance.checks import Judge, require
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


@pytest.mark.parametrize("case", ["one-row", "flat", "batched", "wide", "integer", "nan", "infinite"])
def test_malformed_prompts_are_refused(streams: Streams, utterances: Utterances, judge: Judge, case: str) -> None:
    utterance = utterances.rows(8, judge.manner)
    rows = utterance.embeds
    bad = {
        "one-row": rows[:1],
        "flat": rows[0],
        "batched": rows[None],
        "wide": torch.cat((rows, rows[:, :1]), dim=1),
        "integer": rows.to(torch.int64),
        "nan": rows.clone().index_fill_(0, torch.tensor([3]), float("nan")),
        "infinite": rows.clone().index_fill_(0, torch.tensor([3]), float("inf")),
    }[case]
    limit = streams.decoder.capabilities.max_streams or 8
    for _ in range(limit + 1):  # one row held for each refusal would run out here
        with pytest.raises(InvalidRequestError):
            streams.decoder.prefill(StreamRequest(bad, utterance.sampling))
    judge(utterance, streams.say(utterance, 2), 2)


def test_history_outside_the_vocabulary_is_refused(
    streams: Streams, utterances: Utterances, judge: Judge, checkpoint: Checkpoint
) -> None:
    rows = utterances.rows(8, judge.manner).embeds
    for history in ((-1,), (0, checkpoint.config.talker.vocab_size)):
        with pytest.raises(InvalidRequestError):
            streams.decoder.prefill(StreamRequest(rows, SamplingParams(), history))


def test_unknown_and_released_streams_are_refused(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    stream = streams.start(utterances.rows(8, judge.manner))
    text = stream.utterance.pad
    streams.release(stream)
    for handle in (stream.handle, StreamHandle(10**9)):
        with pytest.raises(InvalidRequestError):
            streams.decoder.decode([DecodeStep(handle, text)])
        with pytest.raises(InvalidRequestError):
            streams.decoder.release(handle)


@pytest.mark.parametrize("case", ["unknown", "twice", "short-row", "flat-row", "integer-row"])
def test_a_bad_step_leaves_the_others_where_they_were(
    streams: Streams, utterances: Utterances, judge: Judge, case: str
) -> None:
    utterance = utterances.prompt(SENTENCES[0], "interleaved", judge.manner)
    stream = streams.start(utterance)
    streams.run(stream, 3)
    good, text = stream.step(), utterance.pad
    bad = {
        "unknown": [good, DecodeStep(StreamHandle(10**9), text)],
        "twice": [good, good],
        "short-row": [DecodeStep(stream.handle, text[:-1])],
        "flat-row": [DecodeStep(stream.handle, text[None])],
        "integer-row": [DecodeStep(stream.handle, text.to(torch.int64))],
    }[case]
    with pytest.raises(InvalidRequestError):
        streams.decoder.decode(bad)
    judge(utterance, streams.run(stream, 3), 6)


@pytest.mark.parametrize("case", ["too-few", "too-many", "negative", "beyond-codebook", "beyond-vocabulary"])
def test_malformed_forced_codes_are_refused(
    streams: Streams, utterances: Utterances, judge: Judge, checkpoint: Checkpoint, case: str
) -> None:
    require(streams.decoder.capabilities, "forced_codes")
    config = checkpoint.config
    good = [1] * config.num_code_groups
    bad = {
        "too-few": good[:-1],
        "too-many": [*good, 1],
        "negative": [*good[:-1], -1],
        "beyond-codebook": [*good[:-1], config.predictor.vocab_size],
        "beyond-vocabulary": [config.talker.vocab_size, *good[1:]],
    }[case]
    utterance = utterances.rows(8, judge.manner)
    stream = streams.start(utterance)
    with pytest.raises(InvalidRequestError):
        streams.advance(stream, forced=bad)
    judge(utterance, streams.run(stream, 2), 2)


def test_missing_abilities_are_refused_as_unsupported(streams: Streams, utterances: Utterances, judge: Judge) -> None:
    if streams.decoder.capabilities.forced_codes:
        pytest.skip("the backend's capabilities list forced_codes")
    utterance = utterances.rows(8, judge.manner)
    stream = streams.start(utterance)
    with pytest.raises(UnsupportedError):
        streams.advance(stream, forced=[1] * 16)
    with pytest.raises(UnsupportedError):
        streams.advance(stream, return_logits=True)
    judge(utterance, streams.run(stream, 2), 2)

"""Logits under teacher forcing: float32 arithmetic is float32, and 16-bit arithmetic is as good as the official one."""

import pytest
import torch

from megatalker_conformance.checks import Judge, require
from megatalker_conformance.measure import Measure
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import (
    ERROR_RATIO,
    FLOAT32_ERROR,
    LogitError,
    first_divergence,
    relative_error,
    widest_flip,
)
from megatalker_conformance.speech import PLAIN_GREEDY, Streams, Utterance
from megatalker_conformance.utterances import LAYOUTS, SENTENCES, Utterances

FLOAT32_FRAMES = 24


@pytest.fixture(params=LAYOUTS)
def utterance(request: pytest.FixtureRequest, utterances: Utterances, rounded_arithmetic: torch.dtype) -> Utterance:
    return utterances.prompt(SENTENCES[0], request.param, PLAIN_GREEDY).sampled(min_new_tokens=100)


def test_float32_logits_have_float32_errors(
    streams: Streams, oracle: Oracle, utterances: Utterances, judge: Judge, exact_arithmetic: None, measure: Measure
) -> None:
    require(streams.decoder.capabilities, "forced_codes")
    utterance = utterances.prompt(SENTENCES[0], "interleaved", judge.manner)
    codes = oracle.codes(utterance, FLOAT32_FRAMES)
    found, exact = streams.force(utterance, codes), oracle.logits(utterance, codes)
    measure("relative error of talker logits", relative_error(found.talker, exact.talker), FLOAT32_ERROR)
    measure("relative error of predictor logits", relative_error(found.predictor, exact.predictor), FLOAT32_ERROR)


def test_16_bit_errors_are_bounded_by_those_of_reference(
    streams: Streams, oracle: Oracle, utterance: Utterance, dtype: torch.dtype, frames: int, measure: Measure
) -> None:
    require(streams.decoder.capabilities, "forced_codes")
    codes = oracle.codes(utterance, frames)
    exact, rounded = oracle.logits(utterance, codes), oracle.logits(utterance, codes, dtype)
    found = streams.force(utterance, codes)
    for kind, ours, official, oracles in (
        ("talker", found.talker, rounded.talker, exact.talker),
        ("predictor", found.predictor, rounded.predictor, exact.predictor),
    ):
        yardstick = LogitError.between(official, oracles)
        error = LogitError.between(ours, oracles).rms
        measure(f"{kind} error, reference's is {yardstick.rms:.3g}", error, ERROR_RATIO * yardstick.rms)
        measure(f"{kind} argmax differs across gaps", widest_flip(ours, oracles), yardstick.tie)


def test_16_bit_speech_parts_from_the_oracle_at_a_near_tie(
    streams: Streams, oracle: Oracle, judge: Judge, utterance: Utterance, frames: int, measure: Measure
) -> None:
    divergence = first_divergence(streams.say(utterance, frames), oracle.codes(utterance, frames))
    if divergence is not None:
        gap, tie = judge.gap(utterance, frames, divergence)
        measure(f"gap at {divergence}", gap, tie)

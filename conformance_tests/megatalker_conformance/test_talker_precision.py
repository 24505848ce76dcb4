"""Logits under teacher forcing: float32 arithmetic is float32, and 16-bit arithmetic is as good as the official one."""

import pytest
import torch

from megatalker_conformance.cases import LAYOUTS, SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.measure import Measure
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import FLOAT32_ERROR, first_divergence, row_errors, sixteen_bit_bounds
from megatalker_conformance.streams import PLAIN_GREEDY, StreamCase, SuiteStreams

FLOAT32_FRAMES = 24


@pytest.fixture(params=LAYOUTS)
def case(
    request: pytest.FixtureRequest, cases: Cases, rounded_arithmetic: torch.dtype, exact_weights: None
) -> StreamCase:
    return cases.prompt(SENTENCES[0], request.param, PLAIN_GREEDY).sampled(min_new_tokens=100)


def test_float32_logits_have_float32_errors(
    streams: SuiteStreams,
    oracle: Oracle,
    cases: Cases,
    judge: Judge,
    exact_arithmetic: None,
    exact_weights: None,
    measure: Measure,
) -> None:
    require(streams.decoder.capabilities, "forced_codes")
    case = cases.prompt(SENTENCES[0], "interleaved", judge.manner)
    codes = oracle.codes(case, FLOAT32_FRAMES)
    errors = row_errors(streams.force(case, codes), oracle.logits(case, codes))
    measure("worst relative error of one frame's logits of code 0", float(errors[:, 0].max()), FLOAT32_ERROR)
    measure("worst relative error of one frame's logits of another", float(errors[:, 1:].max()), FLOAT32_ERROR)


def test_16_bit_errors_are_bounded_by_those_of_reference(
    streams: SuiteStreams, oracle: Oracle, case: StreamCase, dtype: torch.dtype, frames: int, measure: Measure
) -> None:
    require(streams.decoder.capabilities, "forced_codes")
    codes = oracle.codes(case, frames)
    exact, rounded = oracle.logits(case, codes), oracle.logits(case, codes, dtype)
    for bound in sixteen_bit_bounds(streams.force(case, codes), rounded, exact):
        measure(f"{bound.name}, reference's is {bound.official:.3g}", bound.value, bound.limit)


def test_16_bit_speech_parts_from_the_oracle_at_a_near_tie(
    streams: SuiteStreams, oracle: Oracle, judge: Judge, case: StreamCase, frames: int, measure: Measure
) -> None:
    divergence = first_divergence(streams.say(case, frames), oracle.codes(case, frames))
    if divergence is not None:
        margin = judge.gap(case, frames, divergence)
        measure(f"gap at {divergence}", margin.apart, margin.tie)

"""Sampling parity on the checkpoint itself: every sampling value changes a code, and changes it as in ``reference``.

What value and seed change a code is read off the model's own logits: a trained model is sure of most of its codes.
``test_talker_rules`` holds each rule of the contract to more than that, on a model made for it.
"""

from dataclasses import replace

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.choices import Choice
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.streams import PLAIN_GREEDY, StreamCase, SuiteStreams

FRAMES = 4
PENALTY_FRAMES = 12
SEEDS = 2000
HEATS = (0.9, 3.0, 10.0, 30.0, 100.0)
"""Temperatures that make a model of any sureness waver."""


@pytest.fixture
def case(streams: SuiteStreams, cases: Cases, exact_arithmetic: None) -> StreamCase:
    require(streams.decoder.capabilities, "seeded_sampling")
    return cases.prompt(SENTENCES[0], "interleaved", replace(PLAIN_GREEDY, min_new_tokens=FRAMES))


@pytest.fixture
def first_frame(oracle: Oracle, case: StreamCase, checkpoint: Checkpoint) -> list[Choice]:
    """Return the choices of code 0 and, after the greedy code 0, of code 1 in frame 0."""
    codes = oracle.codes(case, 1)
    logits = oracle.logits(case, codes)
    vocabulary = CodeVocabulary.from_config(checkpoint.config)
    rows = (logits.talker[0], logits.predictor[0, 0])
    return [Choice(row.numpy(), case.sampling, codebook, 0, (), vocabulary) for codebook, row in enumerate(rows)]


@pytest.mark.parametrize("codebook", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"seed": 2**63 + 1}, id="seed"),
        pytest.param({"temperature": 0.3}, id="temperature"),
        pytest.param({"top_k": 3}, id="top-k"),
        pytest.param({"top_p": 0.3}, id="top-p"),
        pytest.param({"do_sample": False}, id="greedy"),
    ],
)
def test_each_sampling_value_takes_effect(
    streams: SuiteStreams,
    judge: Judge,
    case: StreamCase,
    first_frame: list[Choice],
    changes: dict[str, object],
    codebook: int,
) -> None:
    """Tests one value at a time, for code 0 and for the predictor's codes, while the other stage is greedy."""
    for sampling in _decisive(first_frame[codebook], changes):
        said = replace(case, sampling=sampling)
        judge(said, streams.say(said, FRAMES), FRAMES)


def _decisive(choice: Choice, changes: dict[str, object]) -> tuple[SamplingParams, SamplingParams]:
    """Sampling of this choice's stage alone, without and with the changes, that chooses different codes."""
    for heat in HEATS:
        for seed in range(SEEDS):
            plain: dict[str, object] = {"do_sample": True, "temperature": heat, "top_k": None, "seed": seed}
            changed = {**plain, **changes}
            if "temperature" in changes:
                changed["temperature"] = 0.3 * heat
            one, other = (choice.with_(**_of_stage(values, choice.codebook)) for values in (plain, changed))
            if one.code() != other.code():
                return one.params, other.params
    raise AssertionError(f"{changes} change no code of this checkpoint, however hot it is sampled")


def _of_stage(values: dict[str, object], codebook: int) -> dict[str, object]:
    """The values by their names for this codebook."""
    return {("predictor_" if codebook and name != "seed" else "") + name: value for name, value in values.items()}


@pytest.mark.parametrize("penalty", [1.5, 0.8])
def test_repetition_penalty_counts_the_generated_code_0_history(
    streams: SuiteStreams, cases: Cases, judge: Judge, exact_arithmetic: None, penalty: float
) -> None:
    plain = replace(PLAIN_GREEDY, min_new_tokens=PENALTY_FRAMES, repetition_penalty=penalty)
    penalised = cases.prompt(SENTENCES[1], "interleaved", plain)
    judge(penalised, streams.say(penalised, PENALTY_FRAMES), PENALTY_FRAMES)

"""Sampling parity: every rule of the sampling contract changes the codes, and changes them as in ``reference``."""

from dataclasses import replace

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.numpy_sampler import choose
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.speech import GREEDY, Streams, Utterance
from megatalker_conformance.utterances import SENTENCES, Utterances

FRAMES = 12


@pytest.fixture
def utterance(streams: Streams, utterances: Utterances, exact_arithmetic: None) -> Utterance:
    require(streams.decoder.capabilities, "seeded_sampling")
    return utterances.prompt(SENTENCES[0], "interleaved", SamplingParams(seed=11, min_new_tokens=FRAMES))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"temperature": 0.3}, id="temperature"),
        pytest.param({"temperature": 5.0, "top_k": None}, id="hot-unfiltered"),
        pytest.param({"top_k": 3}, id="top-k"),
        pytest.param({"top_p": 0.3}, id="top-p"),
        pytest.param({"predictor_temperature": 0.2}, id="predictor-temperature"),
        pytest.param({"predictor_top_k": 2}, id="predictor-top-k"),
        pytest.param({"predictor_top_p": 0.2}, id="predictor-top-p"),
        pytest.param({"do_sample": False}, id="greedy-code-0"),
        pytest.param({"predictor_do_sample": False}, id="greedy-predictor"),
    ],
)
def test_each_sampling_value_takes_effect(
    streams: Streams, judge: Judge, oracle: Oracle, utterance: Utterance, changes: dict[str, object]
) -> None:
    changed = utterance.sampled(**changes)
    codes = streams.say(changed, FRAMES)
    judge(changed, codes, FRAMES)
    assert codes != oracle.codes(utterance, FRAMES), f"{changes} must change the codes of this checkpoint"


@pytest.mark.parametrize("penalty", [1.5, 0.8])
def test_repetition_penalty_counts_the_generated_code_0_history(
    streams: Streams, utterances: Utterances, judge: Judge, exact_arithmetic: None, penalty: float
) -> None:
    plain = utterances.prompt(SENTENCES[1], "interleaved", GREEDY).sampled(
        repetition_penalty=1.0, min_new_tokens=FRAMES
    )
    penalised = plain.sampled(repetition_penalty=penalty)
    codes = streams.say(penalised, FRAMES)
    judge(penalised, codes, FRAMES)


def test_equal_seeds_give_equal_codes_and_other_seeds_others(streams: Streams, utterance: Utterance) -> None:
    first, again, other = (streams.say(utterance.sampled(seed=seed), FRAMES) for seed in (11, 11, 12))
    assert first == again
    for codebook in (0, 1):
        assert [codes[codebook] for codes in first] != [codes[codebook] for codes in other], (
            f"another seed must choose other codes in codebook {codebook}"
        )


def test_noise_differs_from_frame_to_frame(streams: Streams, judge: Judge, utterance: Utterance) -> None:
    """At a high temperature the noise decides; the same noise in every frame would repeat one frame for ever."""
    hot = utterance.sampled(temperature=1e4, top_k=None, predictor_temperature=1e4, predictor_top_k=None)
    codes = streams.say(hot, FRAMES)
    judge(hot, codes, FRAMES)
    assert len(set(codes)) == FRAMES


def test_end_of_speech_waits_for_min_new_tokens(
    streams: Streams, checkpoint: Checkpoint, judge: Judge, utterance: Utterance
) -> None:
    """So hot that only the noise decides, a seed can be found whose noise favours end-of-speech at one frame."""
    hot = utterance.sampled(temperature=1e6, top_k=None, repetition_penalty=1.0, min_new_tokens=5)
    hot = hot.sampled(seed=_seed_that_ends_at(5, hot.sampling, CodeVocabulary.of(checkpoint.config)))
    codes = streams.say(hot, FRAMES)
    assert len(codes) == 5, f"the noise of this seed ends the stream after 5 frames; it ended after {len(codes)}"
    judge(hot, codes, FRAMES)
    later = hot.sampled(min_new_tokens=6)
    codes = streams.say(later, FRAMES)
    assert len(codes) > 5, "end-of-speech is suppressed for the first 6 frames"
    judge(later, codes, FRAMES)


def _seed_that_ends_at(frame: int, sampling: SamplingParams, vocabulary: CodeVocabulary) -> int:
    logits = np.zeros(vocabulary.size, dtype=np.float32)
    for seed in range(100_000):
        params = replace(sampling, seed=seed)
        if choose(logits, params, codebook=0, frame=frame, history=(), vocabulary=vocabulary) == vocabulary.eos_id:
            return seed
    raise AssertionError("no seed found: the noise of the sampling contract is not uniform")

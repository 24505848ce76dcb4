"""Near-ties: what rounding explains is told from what it does not."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker_conformance.choices import Choice
from megatalker_conformance.oracle import Followed
from megatalker_conformance.precision import first_divergence
from megatalker_conformance.streams import GREEDY, StreamCase, TeacherForced
from megatalker_conformance.ties import Margin, float32_margin

VOCABULARY = CodeVocabulary(size=12, eos_id=11, first_suppressed_id=10)
SAID = [(1, 5), (2, 5)]


class Asked:
    """An oracle with given logits of its third frame."""

    def __init__(self, first: dict[int, float], second: dict[int, float]) -> None:
        talker, predictor = torch.zeros(3, 12), torch.zeros(3, 1, 10)
        for rows, values in ((talker[2], first), (predictor[2, 0], second)):
            for code, value in values.items():
                rows[code] = value
        self._logits = TeacherForced(talker, predictor)

    def follow(self, case: StreamCase, forced: Any) -> Followed:
        assert list(forced) == [*SAID, None]
        return Followed([], self._logits)


def margin(oracle: Any, ours: tuple[int, ...] | None, theirs: tuple[int, ...], **sampling: Any) -> Margin:
    row = torch.zeros(1)
    case = StreamCase("", row, row, row, replace(GREEDY, **sampling))
    expected = [*SAID, theirs]
    divergence = first_divergence(SAID if ours is None else [*SAID, ours], expected)
    assert divergence is not None
    return float32_margin(oracle, case, expected, divergence, VOCABULARY)


def test_a_gap_of_rounding_is_a_near_tie_and_a_wider_one_is_none() -> None:
    for apart, near in ((1e-5, True), (1e-2, False)):
        found = margin(Asked({3: 4.0, 4: 4.0 - apart}, {}), (4, 0), (3, 0))
        assert found.apart == pytest.approx(apart, rel=0.1)
        assert found.near is near
        assert f"{found.apart:.3g} apart; a near-tie is {found.tie:.3g}" in str(found)


def test_the_penalty_on_what_was_said_counts() -> None:
    """Code 1 was said: 4.2 divided by the penalty is 4.0, as much as code 4 has."""
    assert margin(Asked({1: 4.2, 4: 4.0}, {}), (4, 0), (1, 0), repetition_penalty=1.05).near
    assert not margin(Asked({1: 4.2, 4: 4.0}, {}), (4, 0), (1, 0), repetition_penalty=1.0).near


def test_a_later_codebook_is_read_off_its_own_logits() -> None:
    assert margin(Asked({3: 9.0}, {6: 2.0, 7: 2.0}), (3, 7), (3, 6)).near
    assert not margin(Asked({3: 9.0}, {6: 2.0, 7: 1.9}), (3, 7), (3, 6)).near


def test_an_end_that_comes_early_is_near_only_where_the_end_was() -> None:
    assert margin(Asked({3: 4.0, 11: 4.0}, {}), None, (3, 0), min_new_tokens=0).near
    assert not margin(Asked({3: 4.0, 11: 4.0}, {}), None, (3, 0), min_new_tokens=5).near  # it was barred


def test_sampled_codes_are_apart_by_logits_and_noise() -> None:
    sampling = SamplingParams(seed=3, repetition_penalty=1.0, top_k=None, min_new_tokens=0)
    logits = torch.zeros(12).numpy()
    scores = Choice(logits, sampling, 0, 2, [1, 2], VOCABULARY).scores()
    assert int(scores.argmax()) == Choice(logits, sampling, 0, 2, [1, 2], VOCABULARY).code()
    best, other = scores.argsort()[::-1][:2]
    changes = {name: getattr(sampling, name) for name in ("do_sample", "seed", "repetition_penalty", "top_k")}
    for gap, near in ((1e-6, True), (0.1, False)):
        oracle = Asked({int(other): float(scores[best] - scores[other]) - gap}, {})
        found = margin(oracle, (int(other), 0), (int(best), 0), **changes, min_new_tokens=0)
        assert found.apart == pytest.approx(gap, rel=0.5)
        assert found.near is near

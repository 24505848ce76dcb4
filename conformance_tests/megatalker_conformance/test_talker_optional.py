"""Optional abilities: each claim in the capabilities is held to what it says."""

from collections.abc import Callable

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge, require
from megatalker_conformance.measure import Measure, clock
from megatalker_conformance.streams import SuiteStreams

pytestmark = pytest.mark.optional

BATCH = 4
CLEARLY_LESS = 0.75


def test_one_call_for_several_streams_costs_clearly_less_than_one_call_each(
    streams: SuiteStreams, cases: Cases, judge: Judge, measure: Measure, device: torch.device
) -> None:
    require(streams.decoder.capabilities, "batch")
    group = [streams.start(cases.rows(32, judge.manner)) for _ in range(BATCH)]

    def each() -> None:
        for stream in group:
            streams.advance(stream)

    together, alone = _best_of(clock(device), lambda: streams.advance(*group), each)
    measure("one call for four streams / four calls", together / alone, CLEARLY_LESS)


def _best_of(now: Callable[[], float], *actions: Callable[[], object], rounds: int = 12) -> list[float]:
    """The shortest time of each, taken in turns so that a busy machine disturbs all alike."""
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        for index, action in enumerate(actions):
            began = now()
            action()
            best[index] = min(best[index], now() - began)
    return best


def test_a_reused_prompt_head_gives_bit_identical_logits(
    streams: SuiteStreams, cases: Cases, judge: Judge, checkpoint: Checkpoint
) -> None:
    capabilities = streams.decoder.capabilities
    require(capabilities, "prefix_reuse")
    require(capabilities, "forced_codes")
    first, second = (cases.prompt(text, "upfront", judge.manner) for text in SENTENCES[:2])
    forced = [(1,) * checkpoint.config.num_code_groups] * 3
    alone = streams.force(second, forced)
    streams.say(first, 3)
    after = streams.force(second, forced)
    assert torch.equal(alone.talker, after.talker)
    assert torch.equal(alone.predictor, after.predictor)

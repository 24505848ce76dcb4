"""Rounded weights: logits under teacher forcing are within stated bounds, and speech begins and ends as it should."""

from collections.abc import Callable, Iterator

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.plugins.checked import CheckedTalker
from megatalker_conformance.cases import LAYOUTS, SENTENCES, Cases, Layout, conformance_voice
from megatalker_conformance.checks import require
from megatalker_conformance.engine_harness import EngineHarness
from megatalker_conformance.intelligibility import LONGEST, many_texts
from megatalker_conformance.measure import Measure
from megatalker_conformance.oracle import Oracle
from megatalker_conformance.precision import rounded_bounds
from megatalker_conformance.recording import Log
from megatalker_conformance.special import UNEVEN, Loader, SpecialCheckpoints
from megatalker_conformance.streams import PLAIN_GREEDY, SuiteStreams

FRAMES = 24
TEXTS = 200
SHORTEST = 0.02
"""Seconds of speech for each character of a text, at least: half of what quick speakers take."""


@pytest.fixture
def bits(talker: CheckedTalker) -> int:
    """Bits of a weight of the decoder under test."""
    if talker.capabilities.weight_bits is None:
        pytest.skip("the backend's weights are not rounded")
    return talker.capabilities.weight_bits


@pytest.fixture
def hold(measure: Measure, bits: int) -> Callable[[SuiteStreams, Oracle, Cases, Layout], None]:
    """Holds streams to the bounds."""

    def hold(streams: SuiteStreams, oracle: Oracle, cases: Cases, layout: Layout) -> None:
        require(streams.decoder.capabilities, "forced_codes")
        case = cases.prompt(SENTENCES[0], layout, PLAIN_GREEDY).sampled(min_new_tokens=FRAMES)
        codes = oracle.codes(case, FRAMES)
        exact, official = oracle.logits(case, codes), oracle.logits(case, codes, torch.bfloat16)
        for bound in rounded_bounds(streams.force(case, codes), official, exact, bits):
            name = f"{bound.name}, {bits} bits; official bfloat16: {bound.official:.3g}"
            measure(name, bound.value, bound.limit)

    return hold


@pytest.mark.parametrize("layout", LAYOUTS)
def test_errors_of_rounded_weights_are_bounded(
    streams: SuiteStreams,
    official_oracle: Oracle,
    cases: Cases,
    hold: Callable[[SuiteStreams, Oracle, Cases, Layout], None],
    layout: Layout,
) -> None:
    hold(streams, official_oracle, cases, layout)


def test_neighbouring_weights_of_unequal_size_are_rounded_as_well(
    load_special: Loader,
    special_checkpoints: SpecialCheckpoints,
    hold: Callable[[SuiteStreams, Oracle, Cases, Layout], None],
) -> None:
    """Every second group of 64 columns is twice as large, and what is multiplied with it half as large."""
    streams = SuiteStreams(load_special(UNEVEN))
    try:
        cases = Cases(special_checkpoints.checkpoint(UNEVEN))
        hold(streams, special_checkpoints.oracle(UNEVEN), cases, "interleaved")
    finally:
        streams.release_all()


@pytest.fixture
def engine(engine_harness: EngineHarness, checkpoint: Checkpoint, bits: int) -> Iterator[Engine]:
    if checkpoint.name == "tiny":
        pytest.skip("random weights say nothing; run with --checkpoint demo")
    with engine_harness.engine(Log()) as engine:
        yield engine


@pytest.mark.optional
def test_rounded_speech_neither_runs_away_nor_ends_early(
    engine: Engine, checkpoint: Checkpoint, measure: Measure
) -> None:
    voice, runaways, early = conformance_voice(checkpoint), [], []
    for seed, text in enumerate(many_texts(TEXTS)):
        stream = engine.speak(text, voice=voice, language="english", seed=seed, max_frames=LONGEST)
        seconds = sum(len(chunk.pcm) for chunk in stream) / 24_000
        if seconds >= LONGEST * 0.08:
            runaways.append(text)
        elif seconds < SHORTEST * len(text):
            early.append(text)
    measure(f"texts of {TEXTS} that do not end", len(runaways), 0)
    measure(f"texts of {TEXTS} that end early", len(early), 0)

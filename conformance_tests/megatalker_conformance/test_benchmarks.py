"""Benchmarks of backends, grouped so that backends stand side by side; run them with ``--benchmark-only``.

A frame is 80 ms of speech. Compare on the checkpoint you mean to serve: ``--checkpoint demo`` or a published one.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pytest

from megatalker.plugins.checked import CheckedCodec
from megatalker.sampling import SamplingParams
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.engine_harness import EngineHarness
from megatalker_conformance.recording import Log
from megatalker_conformance.streams import SuiteStreams

pytestmark = pytest.mark.optional

ROUNDS = 30
SAMPLING = SamplingParams(min_new_tokens=10_000)
T = TypeVar("T")


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that the benchmarks use."""

    group: str | None
    extra_info: dict[str, Any]

    def pedantic(self, target: Callable[[], T], *, rounds: int, warmup_rounds: int) -> T: ...


@pytest.mark.parametrize("batch", [1, 4])
def test_frame(benchmark: Benchmark, streams: SuiteStreams, cases: Cases, batch: int) -> None:
    if (streams.decoder.max_streams or batch) < batch:
        pytest.skip(f"the backend holds fewer than {batch} streams")
    benchmark.group = f"one frame at context 128, {batch} streams"
    group = [streams.start(cases.rows(128, SAMPLING)) for _ in range(batch)]
    benchmark.pedantic(lambda: streams.advance(*group), rounds=ROUNDS, warmup_rounds=3)


@pytest.mark.parametrize("rows", [32, 128])
def test_prefill(benchmark: Benchmark, streams: SuiteStreams, cases: Cases, rows: int) -> None:
    benchmark.group = f"prefill of {rows} rows"
    case = cases.rows(rows, SAMPLING)
    benchmark.pedantic(lambda: streams.release(streams.start(case)), rounds=ROUNDS, warmup_rounds=3)


@pytest.mark.parametrize(("streams", "frames"), [(1, 1), (1, 8), (4, 1)])
def test_chunk(benchmark: Benchmark, codec: CheckedCodec, code_source: CodeSource, streams: int, frames: int) -> None:
    """After 80 frames of context, so that the transformer's window is full."""
    benchmark.group = f"codec: {frames} frames, {streams} streams"
    states = [codec.open() for _ in range(streams)]
    codec.decode(states, [code_source.random(80, seed=index) for index in range(streams)])
    codes = [code_source.random(frames, seed=9 + index) for index in range(streams)]
    benchmark.pedantic(lambda: codec.decode(states, codes), rounds=12, warmup_rounds=3)


def test_first_chunk(benchmark: Benchmark, engine_harness: EngineHarness) -> None:
    benchmark.group = "engine: request to first chunk (TTFC)"
    with engine_harness.engine(Log()) as engine:

        def first_chunk() -> None:
            with engine_harness.begin(engine, SENTENCES[0], SAMPLING, "interleaved") as stream:
                next(stream)

        benchmark.pedantic(first_chunk, rounds=ROUNDS, warmup_rounds=3)


def test_utterance(benchmark: Benchmark, engine_harness: EngineHarness) -> None:
    """``extra_info`` in the JSON carries the RTF: time divided by the duration of the audio."""
    benchmark.group = "engine: whole utterance"
    with engine_harness.engine(Log()) as engine:

        def utterance() -> float:
            return engine_harness.listen(engine_harness.begin(engine, SENTENCES[0], SAMPLING, "upfront"), Log()).rtf

        benchmark.extra_info["rtf of one round"] = benchmark.pedantic(utterance, rounds=5, warmup_rounds=1)

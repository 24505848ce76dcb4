"""Benchmarks of talker backends, grouped so that backends stand side by side; run them with ``--benchmark-only``.

A frame is 80 ms of speech. Compare on the checkpoint you mean to serve: ``--checkpoint demo`` or a published one.
"""

import pytest

from megatalker.sampling import SamplingParams
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.engine_harness import EngineHarness
from megatalker_conformance.measure import Benchmark
from megatalker_conformance.recording import Log
from megatalker_conformance.streams import SuiteStreams

pytestmark = pytest.mark.optional

ROUNDS = 30
SAMPLING = SamplingParams(min_new_tokens=10_000)


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

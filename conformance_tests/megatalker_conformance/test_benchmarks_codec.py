"""Benchmarks of codecs, as :mod:`megatalker_conformance.test_benchmarks_talker`."""

import pytest

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.measure import Benchmark

pytestmark = pytest.mark.optional


@pytest.mark.parametrize(("streams", "frames"), [(1, 1), (1, 8), (4, 1)])
def test_chunk(benchmark: Benchmark, codec: CheckedCodec, code_source: CodeSource, streams: int, frames: int) -> None:
    """After 80 frames of context, so that the transformer's window is full."""
    benchmark.group = f"codec: {frames} frames, {streams} streams"
    states = [codec.open() for _ in range(streams)]
    codec.decode(states, [code_source.random(80, seed=index) for index in range(streams)])
    codes = [code_source.random(frames, seed=9 + index) for index in range(streams)]
    benchmark.pedantic(lambda: codec.decode(states, codes), rounds=12, warmup_rounds=3)

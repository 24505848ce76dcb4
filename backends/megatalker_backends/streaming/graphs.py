"""Steps of one size captured as CUDA graphs: some hundred kernel launches become one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from megatalker_backends.streaming.steps import Decode


class GraphCapture:
    """Captures steps into graphs that share one memory pool: the next replay may overwrite the results of this one."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, decode: Decode, codes: Tensor, states: Tensor) -> "GraphStep":
        """Capture ``decode(codes, states)`` on their device; waits for work that this device is doing."""
        with torch.cuda.device(codes.device):
            with _side_stream():
                for _ in range(2):  # libraries and compilers set themselves up here, which a capture forbids
                    decode(codes, states)
            graph = torch.cuda.CUDAGraph()
            # "thread_local": what the program does with CUDA in other threads meanwhile is none of its business
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = decode(codes, states)
        return GraphStep(graph, codes, states, results)


class GraphStep:
    """One captured step; see :class:`FixedStep`."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, codes: Tensor, states: Tensor, results: tuple[Tensor, Tensor]
    ) -> None:
        self.codes = codes
        self.states = states
        self._graph = graph
        self._results = results

    def run(self) -> tuple[Tensor, Tensor]:
        self._graph.replay()
        return self._results


@contextmanager
def _side_stream() -> Iterator[None]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)

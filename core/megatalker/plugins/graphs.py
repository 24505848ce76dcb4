"""Work captured as CUDA graphs: hundreds of kernel launches become one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")


class GraphCapture:
    """Captures work into graphs that share one memory pool: the next replay may overwrite the results of this one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """One for all: matrix libraries keep memory for every stream that they meet."""

    def __call__(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Capture ``work``; waits for what the device is doing.

        Returns:
            A function that replays it, on the current stream, and returns the very tensors that ``work`` returned.
        """
        with torch.cuda.device(self._device):
            with _side_stream(self._aside):
                for _ in range(2):  # libraries set themselves up here, which a capture forbids
                    work()
            graph = torch.cuda.CUDAGraph()
            # "thread_local": what the program does with CUDA in other threads meanwhile is none of its business
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = work()

        def replay() -> Result:
            graph.replay()
            return results

        return replay


def run_directly(work: Callable[[], Result]) -> Callable[[], Result]:
    """Run work directly, in place of a capture."""
    return work


@contextmanager
def _side_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)

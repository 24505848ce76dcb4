"""Runs the same work again and again: on a GPU as one recorded graph, elsewhere as it is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_REHEARSALS = 3


class Repeated:
    """``work`` takes nothing, has fixed shapes, draws its own random numbers on the device and returns one tensor."""

    def __init__(self, work: Callable[[], Tensor], device: torch.device, pool: Any = None) -> None:
        """``pool``: of memory, shared by graphs that never run at the same time; ``None``: do not record."""
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None
        if pool is None:
            return
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_REHEARSALS):
                work()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._result = work()
        self._graph = graph

    def __call__(self) -> Tensor:
        if self._graph is None or self._result is None:
            return self._work()
        self._graph.replay()
        return self._result

"""How the memory of every layer lies side by side in one flat state per stream."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class StateLayout:
    """Hands each layer a slot of the state. One flat tensor per stream makes gathering a batch a single copy."""

    def __init__(self) -> None:
        self._shapes: list[tuple[int, ...]] = []

    def reserve(self, *shape: int) -> int:
        """Set aside memory of ``shape`` per stream; the returned slot is its index in what :meth:`split` returns."""
        self._shapes.append(shape)
        return len(self._shapes) - 1

    @property
    def size(self) -> int:
        """Numbers in one stream's state."""
        return sum(prod(shape) for shape in self._shapes)

    def split(self, states: Tensor) -> list[Tensor]:
        """View ``[streams, size]`` as one ``[streams, *shape]`` tensor for each slot."""
        parts = torch.split(states, [prod(shape) for shape in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def join(self, memory: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`, as a new tensor."""
        return torch.cat([part.flatten(1) for part in memory], dim=1)

"""Reads the decoder's tensors in float64, so that folding factors into weights rounds once, at the end."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors by their official names, below a prefix."""

    read: Callable[[str], Tensor]
    """Returns the tensor of a full official name."""
    prefix: str

    def __call__(self, name: str) -> Tensor:
        """The tensor ``prefix.name``, float64."""
        return self.read(f"{self.prefix}.{name}").double()

    def within(self, name: str) -> "Weights":
        """The tensors below ``prefix.name``."""
        return Weights(self.read, f"{self.prefix}.{name}")

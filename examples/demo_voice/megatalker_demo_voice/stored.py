"""Learning with the weights that will be shipped, where those are rounded coarsely."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatalker.checkpoint.difference import nearest


class Stored:
    """Tensors that have, from :meth:`begin` on, the values that storing only their difference leaves.

    Exact tensors are kept, too: gradients are computed at the rounded weights, and move the exact ones.
    """

    def __init__(self, tensors: Sequence[Tensor], bases: Sequence[Tensor]) -> None:
        """``bases``: what the differences are to, of the same shapes."""
        self._tensors, self._bases = tensors, bases
        self._exact: list[Tensor] | None = None

    @torch.no_grad()
    def begin(self) -> None:
        """Round, unless that is done."""
        if self._exact is None:
            self._exact = [tensor.detach().clone() for tensor in self._tensors]
            self._round()

    @torch.no_grad()
    def release(self) -> None:
        """Put the exact tensors in their places, for a step or to be saved."""
        for tensor, exact in zip(self._tensors, self._exact or (), strict=False):
            tensor.copy_(exact)

    @torch.no_grad()
    def impose(self) -> None:
        """Take note of the exact tensors, and round them again; nothing before :meth:`begin`."""
        for tensor, exact in zip(self._tensors, self._exact or (), strict=False):
            exact.copy_(tensor)
        if self._exact is not None:
            self._round()

    def _round(self) -> None:
        for tensor, base in zip(self._tensors, self._bases, strict=True):
            tensor.copy_(nearest(base, tensor))

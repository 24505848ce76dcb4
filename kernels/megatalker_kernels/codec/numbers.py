"""What the codec's products multiply on tensor cores: twins of the structures in ``csrc/codec/numbers.cuh``."""

from enum import Enum

import torch
from torch import Tensor


class Numbers(Enum):
    """How float32 numbers are written for tensor cores; the values are names in the source."""

    HALVES = "Halves"
    """Two float16 numbers: as exact as float32, for weights and inputs within :data:`LARGEST`."""
    TENSORFLOATS = "Tensorfloats"
    """Two TensorFloat-32 numbers: as exact, of any size, half as fast."""
    HIGH_HALVES = "HighHalves"
    """One float16 number: about three decimal digits."""

    def pack(self, rows: Tensor) -> Tensor:
        """Weights or inputs of products ``[..., columns]`` float32, columns a multiple of four, as products read them:
        of the same shape and type, whatever the bits mean.
        """
        if self is Numbers.TENSORFLOATS:
            return rows
        fours = rows.view(*rows.shape[:-1], rows.shape[-1] // 4, 4)
        high = fours.half()
        low = ((fours - high.float()) * _ENLARGED).half()
        return torch.cat((high, low), dim=-1).view(torch.float32).flatten(-2)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of :meth:`pack`."""
        if self is Numbers.TENSORFLOATS:
            return packed
        eights = packed.view(torch.float16).float().view(*packed.shape[:-1], packed.shape[-1] // 4, 8)
        high, low = eights[..., :4], eights[..., 4:]
        return (high + low / _ENLARGED).flatten(-2)


LARGEST = 65504.0
"""Of float16."""
_ENLARGED = 2048.0

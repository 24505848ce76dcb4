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

    def pack(self, weight: Tensor) -> Tensor:
        """Weights ``[columns, taps, channels]`` float32, channels a multiple of four, as the kernels read them: of the
        same shape and type, whatever the bits mean.
        """
        if self is Numbers.TENSORFLOATS:
            return weight
        fours = weight.unflatten(-1, (-1, 4))
        high = fours.half()
        low = ((fours - high.float()) * _ENLARGED).half()
        return torch.cat((high, low), dim=-1).view(torch.float32).flatten(-2)


LARGEST = 65504.0
"""Of float16."""
_ENLARGED = 2048.0

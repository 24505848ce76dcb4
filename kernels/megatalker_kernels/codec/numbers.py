"""Number formats of the codec's products on tensor cores: twins of the structures in ``csrc/codec/numbers.cuh``."""

from enum import Enum
from math import floor, log2

import torch
from torch import Tensor
from torch.nn import functional as F

from megatalker_kernels.codec.structures import WARPGROUP_COLUMNS


class Numbers(Enum):
    """How float32 numbers are written for tensor cores; the values are names in the source."""

    HALVES = "Halves"
    """Two float16 numbers: as exact as float32, for weights and inputs within :data:`LARGEST`."""
    TENSORFLOATS = "Tensorfloats"
    """Two TensorFloat-32 numbers: as exact, of any size, half as fast."""
    HALF = "Half"
    """One float16 number: about three decimal digits, for half of the memory."""

    def words(self, columns: int) -> int:
        """Return the number of 32-bit words that this many packed numbers take; ``columns`` is a multiple of eight."""
        return columns // 2 if self is Numbers.HALF else columns

    def pack(self, rows: Tensor) -> Tensor:
        """Weights or inputs of products ``[..., columns]`` float32, columns a multiple of eight, as products read them:
        ``[..., words]`` of the same type, whatever the bits mean.
        """
        if self is Numbers.TENSORFLOATS:
            return rows
        return torch.cat(self._parts(rows), dim=-1).view(torch.float32).flatten(-2)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of :meth:`pack`."""
        if self is Numbers.TENSORFLOATS:
            return packed
        parts = 1 if self is Numbers.HALF else 2
        halves = packed.contiguous().view(torch.float16).float()
        values: Tensor = halves.view(*packed.shape[:-1], halves.shape[-1] // (8 * parts), parts, 8).sum(-2)
        return values.flatten(-2)

    def pack_for_warpgroups(self, weight: Tensor, words: int) -> Tensor:
        """Weights ``[columns, taps, channels]`` as tiles of warpgroups read them, stage by stage of that many words."""
        columns, taps, channels = weight.shape
        depth = words * (2 if self is Numbers.HALF else 1)
        padding = (0, -channels % depth, 0, 0, 0, -columns % WARPGROUP_COLUMNS)
        blocks = F.pad(weight, padding).view(-1, WARPGROUP_COLUMNS, taps, (channels + padding[1]) // depth, depth)
        # tile, column, tap, stage of channels, eight of it, part, number
        parts = torch.stack(self._parts(blocks), dim=-2)
        return parts.permute(0, 3, 2, 4, 5, 1, 6).contiguous().view(torch.float32)

    def enlargement(self, weight: Tensor) -> float:
        """The power of two by which a weight is multiplied before it is packed, so that float16 holds its low parts."""
        largest = float(weight.abs().max())
        if self is Numbers.TENSORFLOATS or not 0 < largest < _WELL_HELD:
            return 1.0
        return float(2.0 ** floor(log2(_WELL_HELD / largest)))

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the float16 numbers ``[..., eights, 8]`` that each number becomes: its high part, and its low part."""
        eights = rows.reshape(*rows.shape[:-1], rows.shape[-1] // 8, 8)
        high = eights.half()
        return (high,) if self is Numbers.HALF else (high, (eights - high.float()).half())


LARGEST = 65504.0
"""Largest finite float16."""
_WELL_HELD = 16384.0

"""Talker decoders whose weights are rounded, and rounded wrong."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import LoadContext
from megatalker_backends.compiled.quantised import graph, runner
from megatalker_backends.compiled.quantised.groups import Grouped, group_weights
from mistakes.catalogue import EightBitDecoder, FourBitDecoder, mistake

ERRORS = "test_errors_of_rounded_weights_are_bounded"
UNEVEN = "test_neighbouring_weights_of_unequal_size_are_rounded_as_well"
Rounding = Callable[[torch.Tensor, int], Grouped]


class WrongRounding:
    """Rounds its weights wrong, and keeps them to itself."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        with patch.object(graph, "group_weights", self.rounding()), patch.object(runner, "rounded_layers", _unkept):
            super().__init__(checkpoint, context)  # type: ignore[call-arg]  # of the decoder beside it

    def rounding(self) -> Rounding:
        """Return what takes the place of ``group_weights``."""
        raise NotImplementedError


@contextmanager
def _unkept(_checkpoint: Checkpoint, _weights: str, write: Callable[[Path], None]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        yield Path(folder)


class _Shifted(WrongRounding):
    def rounding(self) -> Rounding:
        def shifted(matrix: torch.Tensor, bits: int) -> Grouped:
            grouped = group_weights(matrix, bits)
            return grouped._replace(scales=grouped.scales.roll(1, dims=1).contiguous())

        return shifted


class _ZeroPoint(WrongRounding):
    def rounding(self) -> Rounding:
        def above(matrix: torch.Tensor, bits: int) -> Grouped:
            grouped = group_weights(matrix, bits)
            if bits == 8:
                return grouped._replace(quanta=grouped.quanta.clamp(max=254) + 1)
            low, high = ((part + 1).clamp(max=15) for part in (grouped.quanta & 15, grouped.quanta >> 4))
            return grouped._replace(quanta=low | high << 4)

        return above


class _Unscaled(WrongRounding):
    def rounding(self) -> Rounding:
        matrices = iter(range(10**6))

        def unscaled(matrix: torch.Tensor, bits: int) -> Grouped:
            grouped = group_weights(matrix, bits)
            if next(matrices) // 4 != 1:  # all four matrices of the second layer
                return grouped
            return grouped._replace(scales=torch.full_like(grouped.scales, 1.0))

        return unscaled


@mistake(UNEVEN)
class ShiftedScales8(_Shifted, EightBitDecoder):
    """Each group of 8-bit weights has the scale of the group before."""


@mistake(UNEVEN)
class ShiftedScales4(_Shifted, FourBitDecoder):
    """Each group of 4-bit weights has the scale of the group before."""


@mistake(ERRORS)
class ZeroPoint8(_ZeroPoint, EightBitDecoder):
    """All 8-bit weights are one step too large."""


@mistake(ERRORS)
class ZeroPoint4(_ZeroPoint, FourBitDecoder):
    """All 4-bit weights are one step too large."""


@mistake(ERRORS)
class Unscaled8(_Unscaled, EightBitDecoder):
    """The 8-bit weights of one layer have scales of 1."""


@mistake(ERRORS)
class Unscaled4(_Unscaled, FourBitDecoder):
    """The 4-bit weights of one layer have scales of 1."""

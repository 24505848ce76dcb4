"""Rounding of matrices to 8 or 4 bits, with one scale for each group of neighbouring weights of a row."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPS = {8: 64, 4: 32}
"""Weights of a row that share a scale, by bits. ONNX Runtime rounds activations in the same groups."""

EXACT_LAYERS = 1
"""Layers at the beginning of each stack that have 8 bits in any case: rounded to 4 like the others, they made a third
of the error of the predictor's logits."""


class Grouped(NamedTuple):
    """A matrix ``[outputs, inputs]`` as ONNX Runtime's ``MatMulNBits`` takes it."""

    quanta: Tensor
    """``[outputs, groups, bytes]`` uint8: above zero by ``2 ** (bits - 1)``; of two in a byte, the lower half first."""
    scales: Tensor
    """``[outputs, groups]`` float32."""


def group_weights(matrix: Tensor, bits: int) -> Grouped:
    """Round a matrix ``[outputs, inputs]`` of any float type; rows that are no whole number of groups get zeros."""
    size = GROUPS[bits]
    groups = F.pad(matrix.float(), (0, -matrix.shape[1] % size)).view(len(matrix), -1, size)
    zero = 1 << (bits - 1)
    if bits == 8:
        scales = groups.abs().amax(-1, keepdim=True) / (zero - 1)
    else:  # the largest weight, whatever its sign, becomes the lowest of the 16 numbers, so that all of them are used
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scales = torch.where(-low > high, low, high) / -zero
    inverse = torch.where(scales == 0, 0.0, 1 / scales)
    quanta = groups.mul(inverse).round_().add_(zero).clamp_(0, 2 * zero - 1).to(torch.uint8)
    if bits == 4:
        quanta = quanta[..., ::2] | (quanta[..., 1::2] << 4)
    return Grouped(quanta.contiguous(), scales.squeeze(-1).contiguous())


def ungroup_weights(grouped: Grouped, bits: int, inputs: int) -> Tensor:
    """Return the float32 matrix ``[outputs, inputs]`` that the rounded one stands for."""
    quanta = grouped.quanta
    if bits == 4:
        quanta = torch.stack((quanta & 15, quanta >> 4), dim=-1).flatten(-2)
    return ((quanta.float() - (1 << (bits - 1))) * grouped.scales.unsqueeze(-1)).flatten(1)[:, :inputs]

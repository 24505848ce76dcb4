"""Causal convolutions that remember the end of their input.

Two layouts. *Rows* are ``[streams, time, width]``: right where a frame is a few steps of many channels. *Signals* are
``[channels, streams, time]``: right where it is hundreds of steps of few channels. In both a convolution is one matrix
product over all streams: weights are read once however many streams there are, and the precision is that of
:mod:`megatalker.plugins.precision`, not of a convolution library. Weights arrive in float64, so that what is
folded into them is rounded once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.products import linear

Memories = Sequence[list[Tensor]]
"""The memory of each part, as :meth:`StateLayout.split` returns it; those of one stream are the same object."""


class RowConv(nn.Module):
    """Convolution with stride 1 over rows, after the end of the previous call's rows (at first zeros)."""

    few_rows = ("weight",)
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, layout: StateLayout) -> None:
        super().__init__()
        _, inputs, self.kernel = weight.shape
        self.slot = layout.reserve(self.kernel - 1, inputs)
        self.register_buffer("weight", weight.flatten(1).float())
        self.register_buffer("bias", bias.float())

    def forward(self, parts: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Each ``[streams, time, inputs]`` to ``[streams, time, outputs]``; advances its slot of each memory."""
        return linear([*map(self._windows, parts, memories)], self.weight, self.bias)

    def _windows(self, rows: Tensor, memory: list[Tensor]) -> Tensor:
        known = torch.cat((memory[self.slot], rows), dim=1)
        memory[self.slot] = known[:, rows.shape[1] :]
        return known.unfold(1, self.kernel, 1).flatten(2)


class SignalConv(nn.Module):
    """Convolution with stride 1 over signals, with dilation; otherwise as :class:`RowConv`."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int, layout: StateLayout) -> None:
        super().__init__()
        _, inputs, kernel = weight.shape
        self.dilation = dilation
        self.context = (kernel - 1) * dilation
        self.slot = layout.reserve(inputs, self.context)
        self.register_buffer("weight", weight.flatten(1).float())
        self.register_buffer("bias", bias[:, None].float())

    def forward(self, signal: Tensor, memory: list[Tensor]) -> Tensor:
        """``[inputs, streams, time]`` to ``[outputs, streams, time]``; advances its slot of ``memory``."""
        _, streams, time = signal.shape
        known = torch.cat((memory[self.slot].transpose(0, 1), signal), dim=2)
        memory[self.slot] = known[:, :, time:].transpose(0, 1)
        taps = known.unfold(2, self.context + 1, 1)[..., :: self.dilation]
        columns = taps.permute(0, 3, 1, 2).reshape(-1, streams * time)
        return torch.addmm(self.bias, self.weight, columns).view(-1, streams, time)


class UpsamplingConv(nn.Module):
    """Transposed convolution of kernel ``2 * rate`` and stride ``rate``, its last ``rate`` outputs cut off.

    Every output then depends on the current and the previous step alone, and carries the bias once: a :class:`RowConv`
    of kernel 2 whose outputs are the ``rate`` steps that one step becomes.
    """

    def __init__(self, weight: Tensor, bias: Tensor, layout: StateLayout) -> None:
        super().__init__()
        self.rate = weight.shape[2] // 2
        current, previous = torch.split(weight.permute(2, 1, 0), self.rate)
        steps = torch.stack((previous, current), dim=-1)  # [rate, outputs, inputs, 2]
        self.conv = RowConv(steps.flatten(0, 1), bias.repeat(self.rate), layout)

    def forward(self, parts: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Each ``[streams, time, inputs]`` to ``[streams, rate * time, outputs]``."""
        return [some.view(len(some), some.shape[1] * self.rate, -1) for some in self.conv(parts, memories)]

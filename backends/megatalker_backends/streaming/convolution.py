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
from megatalker_backends.streaming.products import linear, product
from megatalker_backends.streaming.side_by_side import side_by_side

FEW_STEPS = 32
"""A product of fewer steps takes as long as reading its weights does, so frames share it."""

Memories = Sequence[list[Tensor]]
"""The memory of each part, as :meth:`StateLayout.split` returns it; those of one stream are the same object."""


class RowConv(nn.Module):
    """Convolution with stride 1 over rows, after the end of the previous call's rows (at first zeros)."""

    few_rows = ("weight",)
    dilation = 1
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

    def __init__(self, weight: Tensor, bias: Tensor, layout: StateLayout, dilation: int = 1) -> None:
        super().__init__()
        _, inputs, self.kernel = weight.shape
        self.dilation = dilation
        self.context = (self.kernel - 1) * dilation
        self.slot = layout.reserve(inputs, self.context)
        self.register_buffer("weight", weight.flatten(1).float())
        self.register_buffer("bias", bias[:, None].float())

    def advance(self, signals: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Return what comes before each signal, ``[inputs, streams, context]``, and advance its slot of each memory."""
        before = []
        for signal, memory in zip(signals, memories, strict=True):
            known, time = memory[self.slot].transpose(0, 1), signal.shape[2]
            before.append(known)
            known = signal if time >= self.context else torch.cat((known, signal), dim=2)
            memory[self.slot] = known[:, :, known.shape[2] - self.context :].transpose(0, 1)
        return before

    def forward(self, signal: Tensor, before: Tensor) -> Tensor:
        """``[inputs, streams, time]`` to ``[outputs, streams, time]``, after what :meth:`advance` returned."""
        _, streams, time = signal.shape
        taps = torch.cat((before, signal), dim=2).unfold(2, self.context + 1, 1)[..., :: self.dilation]
        columns = taps.permute(0, 3, 1, 2).reshape(-1, streams * time)
        return product(self.weight, columns, self.bias).view(-1, streams, time)


class UpsamplingConv(nn.Module):
    """Transposed convolution of kernel ``2 * rate`` and stride ``rate``, its last ``rate`` outputs cut off.

    Every output then depends on the current and the previous step alone, and carries the bias once: a convolution of
    kernel 2 whose outputs are the ``rate`` steps that one step becomes.

    Args:
        weight: ``[inputs, outputs, 2 * rate]``.
        bias: ``[outputs]``.
        steps: input steps of a frame; few of them share the reading of the weights with those of other frames.
        layout: gets the memory's slot.
    """

    def __init__(self, weight: Tensor, bias: Tensor, steps: int, layout: StateLayout) -> None:
        super().__init__()
        self.rate = weight.shape[2] // 2
        current, previous = torch.split(weight.permute(2, 1, 0), self.rate)
        taps = torch.stack((previous, current), dim=-1).flatten(0, 1)  # [rate * outputs, inputs, 2]
        form = RowConv if steps < FEW_STEPS else SignalConv
        self.conv = form(taps, bias.repeat(self.rate), layout)

    def forward(self, signals: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Each ``[inputs, streams, time]`` to ``[outputs, streams, rate * time]``; advances its slot of each memory."""
        if isinstance(self.conv, SignalConv):
            return side_by_side(self._convolve, signals, self.conv.advance(signals, memories))
        rows = self.conv([signal.permute(1, 2, 0) for signal in signals], memories)
        return side_by_side(self._interleave, [some.permute(2, 0, 1) for some in rows])

    def _convolve(self, signal: Tensor, before: Tensor) -> Tensor:
        return self._interleave(self.conv(signal, before))

    def _interleave(self, made: Tensor) -> Tensor:
        steps = made.view(self.rate, -1, *made.shape[1:])
        return steps.permute(1, 2, 3, 0).flatten(2).contiguous()

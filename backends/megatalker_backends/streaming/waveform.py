"""The last part of the decoder: from latent steps to samples, as rows first and as signals from the first block on."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megatalker_backends.streaming.convolution import Memories, RowConv, SignalConv, UpsamplingConv
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.weights import Weights

DILATIONS = (1, 3, 9)


class Snake(nn.Module):
    """SnakeBeta, x + sin(x exp(alpha))^2 / exp(beta), with both exponentials taken beforehand."""

    frequency: Tensor
    height: Tensor

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.register_buffer("frequency", weights("alpha").exp()[:, None, None].float())
        self.register_buffer("height", (weights("beta").exp() + 1e-9).reciprocal()[:, None, None].float())

    def forward(self, signal: Tensor) -> Tensor:
        wave = (signal * self.frequency).sin()
        return torch.addcmul(signal, wave * self.height, wave)


class ResidualUnit(nn.Module):
    """Snake, dilated convolution, snake, pointwise convolution, added to the input."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weights: Weights, dilation: int, layout: StateLayout) -> None:
        super().__init__()
        self.before = Snake(weights.within("act1"))
        self.conv = SignalConv(weights("conv1.conv.weight"), weights("conv1.conv.bias"), dilation, layout)
        self.between = Snake(weights.within("act2"))
        self.register_buffer("weight", weights("conv2.conv.weight").flatten(1).float())
        self.register_buffer("bias", weights("conv2.conv.bias")[:, None].float())

    def forward(self, signal: Tensor, memory: list[Tensor]) -> Tensor:
        inner = self.between(self.conv(self.before(signal), memory))
        flat = torch.addmm(signal.flatten(1), self.weight, inner.flatten(1))
        return flat.add_(self.bias).view_as(signal)


class UpsamplingBlock(nn.Module):
    """Raises the time resolution and halves the channels."""

    def __init__(self, weights: Weights, layout: StateLayout) -> None:
        super().__init__()
        self.snake = Snake(weights.within("0"))
        self.conv = UpsamplingConv(weights("1.conv.weight"), weights("1.conv.bias"), layout)
        self.units = nn.ModuleList(
            ResidualUnit(weights.within(str(index)), dilation, layout) for index, dilation in enumerate(DILATIONS, 2)
        )

    def forward(self, signals: Sequence[Tensor], memories: Memories) -> Sequence[Tensor]:
        rows = self.conv([self.snake(signal).permute(1, 2, 0) for signal in signals], memories)
        signals = [some.permute(2, 0, 1).contiguous() for some in rows]
        for unit in self.units:
            signals = [*map(unit, signals, memories)]
        return signals


class Waveform(nn.Module):
    """Rows ``[streams, time, latent_dim]`` of each part to ``[streams, samples]`` within [-1, 1]."""

    def __init__(self, weights: Weights, blocks: int, layout: StateLayout) -> None:
        super().__init__()
        self.first = RowConv(weights("0.conv.weight"), weights("0.conv.bias"), layout)
        self.blocks = nn.ModuleList(
            UpsamplingBlock(weights.within(f"{index + 1}.block"), layout) for index in range(blocks)
        )
        self.snake = Snake(weights.within(f"{blocks + 1}"))
        last = weights.within(f"{blocks + 2}.conv")
        self.last = SignalConv(last("weight"), last("bias"), 1, layout)

    def forward(self, parts: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        signals: Sequence[Tensor] = [rows.permute(2, 0, 1) for rows in self.first(parts, memories)]
        for block in self.blocks:
            signals = block(signals, memories)
        made = map(self.last, map(self.snake, signals), memories)
        return [samples.squeeze(0).clamp(-1, 1) for samples in made]

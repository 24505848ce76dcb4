"""The last part of the decoder: from latent steps to samples, as rows first and as signals from the first block on."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megatalker_backends.streaming.convolution import Memories, RowConv, SignalConv, UpsamplingConv
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.products import product
from megatalker_backends.streaming.side_by_side import side_by_side
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
        self.conv = SignalConv(weights("conv1.conv.weight"), weights("conv1.conv.bias"), layout, dilation)
        self.between = Snake(weights.within("act2"))
        self.register_buffer("weight", weights("conv2.conv.weight").flatten(1).float())
        self.register_buffer("bias", weights("conv2.conv.bias")[:, None].float())

    def forward(self, signals: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Each ``[channels, streams, time]`` to the same shape; advances the convolution's slot of each memory."""
        bent = side_by_side(self.before, signals)
        return side_by_side(self._convolve, signals, bent, self.conv.advance(bent, memories))

    def _convolve(self, signal: Tensor, bent: Tensor, before: Tensor) -> Tensor:
        inner = self.between(self.conv(bent, before))
        return product(self.weight, inner.flatten(1), signal.flatten(1)).add_(self.bias).view_as(signal)


class UpsamplingBlock(nn.Module):
    """Raises the time resolution and halves the channels."""

    def __init__(self, weights: Weights, steps: int, layout: StateLayout) -> None:
        super().__init__()
        self.snake = Snake(weights.within("0"))
        self.conv = UpsamplingConv(weights("1.conv.weight"), weights("1.conv.bias"), steps, layout)
        self.units = nn.ModuleList(
            ResidualUnit(weights.within(str(index)), dilation, layout) for index, dilation in enumerate(DILATIONS, 2)
        )

    def forward(self, signals: Sequence[Tensor], memories: Memories) -> Sequence[Tensor]:
        signals = self.conv(side_by_side(self.snake, signals), memories)
        for unit in self.units:
            signals = unit(signals, memories)
        return signals


class Waveform(nn.Module):
    """From latent steps to samples within [-1, 1].

    Args:
        weights: the tensors of ``decoder.decoder``.
        rates: steps that one becomes, for each block.
        steps: latent steps of a frame.
        layout: gets the memory's slots.
    """

    def __init__(self, weights: Weights, rates: Sequence[int], steps: int, layout: StateLayout) -> None:
        super().__init__()
        self.first = RowConv(weights("0.conv.weight"), weights("0.conv.bias"), layout)
        self.blocks = nn.ModuleList()
        for index, rate in enumerate(rates, 1):
            self.blocks.append(UpsamplingBlock(weights.within(f"{index}.block"), steps, layout))
            steps *= rate
        blocks = len(rates)
        self.snake = Snake(weights.within(f"{blocks + 1}"))
        last = weights.within(f"{blocks + 2}.conv")
        self.last = SignalConv(last("weight"), last("bias"), layout)

    def forward(self, parts: Sequence[Tensor], memories: Memories, pieces: int = 1) -> list[Tensor]:
        """Cut each ``[streams, time, latent_dim]`` into ``pieces`` by time; return ``[streams, samples]`` of each."""
        signals: Sequence[Tensor] = [
            piece.permute(2, 0, 1) for rows in self.first(parts, memories) for piece in rows.chunk(pieces, dim=1)
        ]
        memories = [memory for memory in memories for _ in range(pieces)]
        for block in self.blocks:
            signals = block(signals, memories)
        bent = side_by_side(self.snake, signals)
        made = side_by_side(self.last, bent, self.last.advance(bent, memories))
        return [samples.squeeze(0).clamp(-1, 1) for samples in made]

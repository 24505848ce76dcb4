"""The first stage, codes to embeddings, and the stages between transformer and waveform.

Rows are ``[streams, time, width]``.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.convolution import Memories
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.products import linear
from megatalker_backends.streaming.weights import Weights


class Codebooks(nn.Module):
    """Sums the entries that a frame's codes name, each already sent through its quantizer's output projection."""

    table: Tensor
    offsets: Tensor

    def __init__(self, weights: Weights, config: CodecConfig) -> None:
        super().__init__()
        books = [self._book(weights.within("rvq_first"), 0)]
        books += [self._book(weights.within("rvq_rest"), index) for index in range(config.num_quantizers - 1)]
        self.register_buffer("table", torch.cat(books).float())
        self.register_buffer("offsets", torch.arange(config.num_quantizers) * config.codebook_size)

    @staticmethod
    def _book(weights: Weights, index: int) -> Tensor:
        book = weights.within(f"vq.layers.{index}._codebook")
        entries = book("embedding_sum") / book("cluster_usage").clamp(min=1e-5)[:, None]
        return entries @ weights("output_proj.weight").squeeze(-1).T

    def forward(self, codes: Tensor) -> Tensor:
        """``[streams, frames, code groups]`` int64 to ``[streams, frames, codebook_dim]``."""
        return F.embedding(codes + self.offsets, self.table).sum(dim=2)


class Doubling(nn.Module):
    """Transposed convolution whose kernel equals its stride, then a ConvNeXt block with a causal depthwise part."""

    few_rows = ("spread", "widen", "narrow")
    spread: Tensor
    spread_bias: Tensor
    taps: Tensor
    taps_bias: Tensor
    widen: Tensor
    widen_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor

    def __init__(self, weights: Weights, layout: StateLayout) -> None:
        super().__init__()
        spread, block = weights("0.conv.weight"), weights.within("1")
        taps, widen, gamma = block("dwconv.conv.weight"), block("pwconv1.weight"), block("gamma")
        self.width, self.rate = spread.shape[1:]
        self.slot = layout.reserve(taps.shape[2] - 1, self.width)
        self.register_buffer("spread", spread.permute(2, 1, 0).flatten(0, 1).float())
        self.register_buffer("spread_bias", weights("0.conv.bias").repeat(self.rate).float())
        self.register_buffer("taps", taps.squeeze(1).float())
        self.register_buffer("taps_bias", block("dwconv.conv.bias").float())
        self.register_buffer("widen", (widen * block("norm.weight")).float())
        self.register_buffer("widen_bias", (block("pwconv1.bias") + widen @ block("norm.bias")).float())
        self.register_buffer("narrow", (block("pwconv2.weight") * gamma[:, None]).float())
        self.register_buffer("narrow_bias", (block("pwconv2.bias") * gamma).float())

    def forward(self, parts: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        """Each ``[streams, time, width]`` to ``[streams, rate * time, width]``; advances its slot of each memory."""
        spread = linear(parts, self.spread, self.spread_bias)
        parts = [some.view(len(some), some.shape[1] * self.rate, self.width) for some in spread]
        wide = linear([*map(self._mix, parts, memories)], self.widen, self.widen_bias)
        return [*map(torch.add, parts, linear([*map(F.gelu, wide)], self.narrow, self.narrow_bias))]

    def _mix(self, rows: Tensor, memory: list[Tensor]) -> Tensor:
        known = torch.cat((memory[self.slot], rows), dim=1)
        memory[self.slot] = known[:, rows.shape[1] :]
        mixed = self.taps_bias
        for first, tap in enumerate(self.taps.unbind(1)):  # the order of a sum over taps would depend on the frames
            mixed = torch.addcmul(mixed, known[:, first : first + rows.shape[1]], tap)
        return F.layer_norm(mixed, (self.width,), eps=1e-6)

"""The whole incremental decoder as one function: codes and states in, samples and the next states out."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.convolution import Memories, RowConv
from megatalker_backends.streaming.latent import Codebooks, Doubling
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.transformer import WindowTransformer
from megatalker_backends.streaming.waveform import Waveform
from megatalker_backends.streaming.weights import Weights

FRAMES_AT_ONCE = 16
"""Frames whose layers are computed side by side: their signals are held meanwhile, 0.7 MB each at published shapes."""


class StreamingDecoder(nn.Module):
    """Decodes the next frames of several streams without side effects, float32 throughout.

    Args:
        config: the codec's shapes.
        weights: the tensors below ``decoder`` in the speech tokenizer.
    """

    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        super().__init__()
        self.layout = StateLayout()
        self.codebooks = Codebooks(weights.within("quantizer"), config)
        self.pre_conv = RowConv(weights("pre_conv.conv.weight"), weights("pre_conv.conv.bias"), self.layout)
        self.transformer = WindowTransformer(weights.within("pre_transformer"), config, self.layout)
        self.doublings = nn.ModuleList(
            Doubling(weights.within(f"upsample.{index}"), self.layout) for index in range(len(config.upsampling_ratios))
        )
        self.waveform = Waveform(
            weights.within("decoder"), config.upsample_rates, prod(config.upsampling_ratios), self.layout
        )

    def forward(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Decode ``codes`` ``[streams, frames, code groups]`` int64 from ``states`` ``[streams, state size]``.

        Returns:
            ``[streams, samples]`` float32 within [-1, 1], and the next states; all streams advance by the same frames.
        """
        memory = self.layout.split(states)
        (samples,) = self._decode([codes], [memory])
        return samples, self.layout.join(memory)

    def frame_by_frame(self, codes: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Do the same with a state ``[state size]`` for each stream, so that a frame's bits do not depend on the frames
        and streams of its call.

        Each frame takes the same instructions, layer by layer for some frames at a time: they share the reading of a
        layer's weights.
        """
        memories = [self.layout.split(state[None]) for state in states]
        groups = [slice(first, first + FRAMES_AT_ONCE) for first in range(0, len(states), FRAMES_AT_ONCE)]
        samples = torch.cat([self._some_frame_by_frame(codes[some], memories[some]) for some in groups])
        return samples, [self.layout.join(memory)[0] for memory in memories]

    def _some_frame_by_frame(self, codes: Tensor, memories: Memories) -> Tensor:
        streams, chunks = len(codes), list[Tensor]()
        for some in torch.split(codes, max(1, FRAMES_AT_ONCE // streams), dim=1):
            frames = self._decode([*some[:, None]], memories, some.shape[1])
            chunks.append(torch.cat(frames).view(streams, -1))
        return torch.cat(chunks, dim=1)

    def _decode(self, codes: Sequence[Tensor], memories: Memories, pieces: int = 1) -> list[Tensor]:
        parts = self.transformer(self.pre_conv([*map(self.codebooks, codes)], memories), memories)
        for doubling in self.doublings:
            parts = doubling(parts, memories)
        samples: list[Tensor] = self.waveform(parts, memories, pieces)
        return samples

"""The first part of the encoder: causal convolutions from 24,000 samples a second to 25 steps.

They run over a recording in pieces, each after the end of the one before, so that memory does not grow with its length.
Signals are ``[1, channels, time]``. Operations and their order are those of the official encoder, so that codes do not
differ where rounding decides which of two entries of a codebook is nearer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.checkpoint.encoder_config import CodecEncoderConfig

Read = Callable[[str], Tensor]
"""Returns the tensor of a name below ``encoder.``, float32."""
Ends = dict[nn.Module, Tensor]
"""The last inputs of each convolution, which the next piece continues."""
PIECE = 50 * FRAME_SAMPLES
"""Samples of a piece, 4 s; the last one has up to twice as many."""


class StridedConv(nn.Module):
    """Causal convolution: zeros, or the end of the piece before, precede the input; a step that the input fills in part
    is filled up with zeros.
    """

    def __init__(self, read: Read, name: str, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = read(f"{name}.weight"), read(f"{name}.bias")
        self.stride, self.dilation = stride, dilation
        self.context = (self.weight.shape[2] - 1) * dilation + 1 - stride

    def forward(self, signal: Tensor, ends: Ends) -> Tensor:
        """``[1, inputs, time]`` to ``[1, outputs, time / stride]``, rounded up; keeps the input's end in ``ends``."""
        unfilled = -signal.shape[2] % self.stride
        if self.context:
            before = ends.get(self, signal.new_zeros(1, signal.shape[1], self.context))
            signal = torch.cat((before, signal), dim=2)
            ends[self] = signal[:, :, -self.context :].clone()  # a copy, so that it does not keep the piece alive
        if unfilled:
            signal = F.pad(signal, (0, unfilled))
        return F.conv1d(signal, self.weight, self.bias, self.stride, dilation=self.dilation)


class NarrowUnit(nn.Module):
    """Two convolutions through fewer channels, added to the input."""

    def __init__(self, read: Read, name: str, dilation: int) -> None:
        super().__init__()
        self.narrow = StridedConv(read, f"{name}.block.1.conv", dilation=dilation)
        self.widen = StridedConv(read, f"{name}.block.3.conv")

    def forward(self, signal: Tensor, ends: Ends) -> Tensor:
        inner = self.narrow(F.elu(signal), ends)
        widened: Tensor = self.widen(F.elu(inner), ends)
        return signal + widened


class DownsamplingConvs(nn.Module):
    """All convolutions up to the transformer."""

    def __init__(self, read: Read, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.first = StridedConv(read, "encoder.layers.0.conv")
        self.stages, index = nn.ModuleList(), 1
        for stride in config.strides:
            stage = nn.ModuleList()
            for depth in range(config.num_residual_layers):
                stage.append(NarrowUnit(read, f"encoder.layers.{index}", config.dilation_growth_rate**depth))
                index += 1
            stage.append(StridedConv(read, f"encoder.layers.{index + 1}.conv", stride))  # after an activation
            self.stages.append(stage)
            index += 2
        self.last = StridedConv(read, f"encoder.layers.{index + 1}.conv")

    def forward(self, audio: Tensor) -> Tensor:
        """``[samples]``, at least one, to ``[1, hidden size, samples / 960]``, rounded up."""
        ends: Ends = {}
        # A short piece is never last: libraries have other kernels for small convolutions, which round otherwise.
        count = max(1, len(audio) // PIECE)
        pieces = audio.tensor_split([PIECE * index for index in range(1, count)])
        return torch.cat([self._run(piece[None, None], ends) for piece in pieces], dim=2)

    def _run(self, signal: Tensor, ends: Ends) -> Tensor:
        signal = self.first(signal, ends)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            *units, down = stage
            for unit in units:
                signal = unit(signal, ends)
            signal = down(F.elu(signal), ends)
        end: Tensor = self.last(F.elu(signal), ends)
        return end

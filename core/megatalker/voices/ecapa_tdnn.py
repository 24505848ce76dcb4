"""ECAPA-TDNN (https://arxiv.org/abs/2005.07143) as the speaker encoder of ``base`` checkpoints.

Modules are named so that tensors have their official names. Signals are ``[batch, channels, rows]``. Operations have
the order of the official ones, so that results are equal to the last bit.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.encoder_config import MEL_BANDS, SpeakerEncoderConfig

_LEAST_VARIANCE = 1e-12


class EcapaTdnn(nn.Module):
    """Log mel spectra ``[batch, rows, 128]`` -> speaker embeddings ``[batch, output size]``.

    A batch holds at least as many rows as the widest reflection at the edges: 5 at the published sizes.
    """

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        widths, kernels, dilations = config.channels, config.kernel_sizes, config.dilations
        blocks: list[nn.Module] = [TimeDelay(MEL_BANDS, widths[0], kernels[0], dilations[0])]
        blocks += [EcapaBlock(config, index) for index in range(1, len(widths) - 1)]
        self.blocks = nn.ModuleList(blocks)
        self.mfa = TimeDelay(widths[-1], widths[-1], kernels[-1], dilations[-1])
        self.asp = AttentivePooling(widths[-1], config.attention_channels)
        self.fc = nn.Conv1d(2 * widths[-1], config.output_size, 1)

    @classmethod
    def from_tensors(cls, config: SpeakerEncoderConfig, tensors: Mapping[str, Tensor]) -> "EcapaTdnn":
        """Make an encoder of tensors with their names below ``speaker_encoder.``, which it keeps."""
        with torch.device("meta"):
            module = cls(config)
        module.load_state_dict(tensors, assign=True)
        return module

    def forward(self, mel: Tensor) -> Tensor:
        signal, outputs = mel.transpose(1, 2), []
        for block in self.blocks:
            signal = block(signal)
            outputs.append(signal)
        pooled = self.asp(self.mfa(torch.cat(outputs[1:], dim=1)))
        embedded: Tensor = self.fc(pooled)
        return embedded.squeeze(-1)


class TimeDelay(nn.Module):
    """Convolution over reflected edges, as long as its input, rectified."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect")

    def forward(self, signal: Tensor) -> Tensor:
        return F.relu(self.conv(signal))


class ChannelParts(nn.Module):
    """Divides the channels into equal parts. The first part stays; each other part is convolved after the result of the
    part before it was added (to the second part nothing is).
    """

    def __init__(self, width: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        part = width // scale
        self.blocks = nn.ModuleList(TimeDelay(part, part, kernel, dilation) for _ in range(scale - 1))

    def forward(self, signal: Tensor) -> Tensor:
        first, *others = signal.chunk(len(self.blocks) + 1, dim=1)
        results = [first]
        for index, (block, part) in enumerate(zip(self.blocks, others, strict=True)):
            results.append(block(part + results[-1] if index else part))
        return torch.cat(results, dim=1)


class ChannelGate(nn.Module):
    """Scales each channel by what the mean over all rows says."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, squeezed, 1)
        self.conv2 = nn.Conv1d(squeezed, width, 1)

    def forward(self, signal: Tensor) -> Tensor:
        mean = signal.mean(dim=2, keepdim=True)
        return signal * torch.sigmoid(self.conv2(F.relu(self.conv1(mean))))


class EcapaBlock(nn.Module):
    """Pointwise, parts of the channels, pointwise, gate; added to the input."""

    def __init__(self, config: SpeakerEncoderConfig, index: int) -> None:
        super().__init__()
        width, kernel, dilation = config.channels[index], config.kernel_sizes[index], config.dilations[index]
        self.tdnn1 = TimeDelay(config.channels[index - 1], width, 1, 1)
        self.res2net_block = ChannelParts(width, config.scale, kernel, dilation)
        self.tdnn2 = TimeDelay(width, width, 1, 1)
        self.se_block = ChannelGate(width, config.squeeze_channels)

    def forward(self, signal: Tensor) -> Tensor:
        inner: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(signal))))
        return inner + signal


class AttentivePooling(nn.Module):
    """Mean and spread of each channel over the rows, ``[batch, 2 * width, 1]``, weighted by an attention that sees the
    unweighted ones, too.
    """

    def __init__(self, width: int, attention: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * width, attention, 1, 1)
        self.conv = nn.Conv1d(attention, width, 1)

    def forward(self, signal: Tensor) -> Tensor:
        rows = signal.shape[2]
        equal = signal.new_ones(1, 1, rows) / rows
        context = [statistic.expand(-1, -1, rows) for statistic in _statistics(signal, equal)]
        attended = self.conv(torch.tanh(self.tdnn(torch.cat([signal, *context], dim=1))))
        return torch.cat(_statistics(signal, attended.softmax(dim=2)), dim=1)


def _statistics(signal: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over the rows, ``[batch, width, 1]`` each."""
    mean = (weights * signal).sum(dim=2, keepdim=True)
    variance = (weights * (signal - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=_LEAST_VARIANCE).sqrt()

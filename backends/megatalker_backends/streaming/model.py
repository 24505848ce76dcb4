"""The whole incremental decoder as one function: codes and states in, samples and the next states out."""

from torch import Tensor, nn

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.convolution import RowConv
from megatalker_backends.streaming.latent import Codebooks, Doubling
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.transformer import WindowTransformer
from megatalker_backends.streaming.waveform import Waveform
from megatalker_backends.streaming.weights import Weights


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
        self.waveform = Waveform(weights.within("decoder"), len(config.upsample_rates), self.layout)

    def forward(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Decode ``codes`` ``[streams, frames, code groups]`` int64 from ``states`` ``[streams, state size]``.

        Returns:
            ``[streams, samples]`` float32 within [-1, 1], and the next states; all streams advance by the same frames.
        """
        memory = self.layout.split(states)
        rows = self.transformer(self.pre_conv(self.codebooks(codes), memory), memory)
        for doubling in self.doublings:
            rows = doubling(rows, memory)
        samples = self.waveform(rows, memory)
        return samples, self.layout.join(memory)

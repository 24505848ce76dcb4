"""Shapes of the two encoders that cloning needs: of speakers, and of the speech tokenizer (waveform to codes).

They are read when a recording is first cloned: a checkpoint that only speaks needs neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from megatalker.checkpoint.config import FRAME_SAMPLES, MOST_LAYERS, SAMPLE_RATE, WITHOUT_EFFECT
from megatalker.checkpoint.fields import Table

LARGEST_WIDTH = 2**14
MEL_BANDS = 128
HALVING = 2
"""The encoder makes two steps of a frame, which its last convolution joins."""
_SPEAKER_DEFAULTS: Mapping[str, Any] = {
    "enc_dim": 1024,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
"""Values that the official package takes for keys which are missing."""
_CODEC_DEMANDS: Mapping[str, object] = {
    "attention_bias": False,
    "audio_channels": 1,
    "hidden_act": "gelu",
    "pad_mode": "constant",
    "rope_scaling": None,
    "sampling_rate": SAMPLE_RATE,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
}
_CODEC_WITHOUT_EFFECT = (
    "layer_scale_initial_scale",  # the tensors hold the scales
    "max_position_embeddings",  # positions are computed, for any length
    "sliding_window",  # the official encoder attends to everything before a step
    "trim_right_ratio",  # of a decoder that the official package leaves out, as the next one
    "upsample_groups",
    "use_streaming",
)


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    """The speaker encoder of ``base`` checkpoints, an ECAPA-TDNN; from ``speaker_encoder_config``."""

    output_size: int
    channels: tuple[int, ...]
    """Outputs of the first convolution, of each block, and of their aggregation."""
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    scale: int
    """Parts into which a block divides its channels."""
    squeeze_channels: int

    @classmethod
    def read(cls, raw: Mapping[str, Any] | None, file: Path | str = "config.json") -> "SpeakerEncoderConfig":
        """Read the parsed ``speaker_encoder_config``; ``None``: all as the official package has it by default.

        Raises:
            CheckpointError: a value is impossible, or there is a key that the official package does not know.
        """
        given = {key: value for key, value in (raw or {}).items() if value is not None}
        table = Table(file, {**_SPEAKER_DEFAULTS, **given}, "speaker_encoder_config")
        table.demand("sample_rate", SAMPLE_RATE)
        table.demand("mel_dim", MEL_BANDS)
        lists = [table.integers(key, 1, LARGEST_WIDTH) for key in ("enc_channels", "enc_kernel_sizes", "enc_dilations")]
        channels, kernel_sizes, dilations = lists
        scale = table.integer("enc_res2net_scale", 1, 64)
        if len(channels) < 3 or any(width % scale for width in channels[:-1]):
            raise table.fault("enc_channels", f"three widths or more, multiples of enc_res2net_scale, which is {scale}")
        if len(set(channels[:-1])) > 1 or channels[-1] != channels[0] * (len(channels) - 2):
            raise table.fault("enc_channels", "equal widths, and last the sum of all but the first of them")
        for key, values in (("enc_kernel_sizes", kernel_sizes), ("enc_dilations", dilations)):
            if len(values) != len(channels):
                raise table.fault(key, f"{len(channels)} integers, as many as enc_channels")
        config = cls(
            output_size=table.integer("enc_dim", 1, LARGEST_WIDTH),
            channels=channels,
            kernel_sizes=kernel_sizes,
            dilations=dilations,
            attention_channels=table.integer("enc_attention_channels", 1, LARGEST_WIDTH),
            scale=scale,
            squeeze_channels=table.integer("enc_se_channels", 1, LARGEST_WIDTH),
        )
        for path in table.unread():
            raise table.fault(path.rpartition(".")[2], "no such key: the official speaker encoder knows none")
        return config


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """The encoder of the speech tokenizer; from ``encoder_config`` in ``speech_tokenizer/config.json``."""

    num_filters: int
    hidden_size: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    strides: tuple[int, ...]
    """Strides of the convolutions, in the order in which they run."""
    num_residual_layers: int
    dilation_growth_rate: int
    compress: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    num_quantizers: int
    num_semantic_quantizers: int
    codebook_size: int
    codebook_dim: int

    @classmethod
    def parse(cls, raw: Mapping[str, Any], file: Path | str = "speech_tokenizer/config.json") -> "CodecEncoderConfig":
        """Read the official ``speech_tokenizer/config.json``, already parsed; errors call it ``file``.

        Raises:
            CheckpointError: a value is missing, of the wrong type, or of a kind that this encoder does not know.
        """
        return cls.read(Table(file, raw).table("encoder_config"))

    @classmethod
    def read(cls, table: Table) -> "CodecEncoderConfig":
        """Read ``encoder_config`` as :meth:`parse` does, but leave it to the caller to ask ``table.unread()``."""
        table.ignore(*WITHOUT_EFFECT, *_CODEC_WITHOUT_EFFECT)
        for key, value in _CODEC_DEMANDS.items():
            table.demand(key, value)
        ratios = table.integers("upsampling_ratios", 1, FRAME_SAMPLES)
        if prod(ratios) * HALVING != FRAME_SAMPLES:
            raise table.fault("upsampling_ratios", f"integers whose product is {FRAME_SAMPLES // HALVING}")
        for key in ("_frame_rate", "frame_rate"):
            if table.has(key) and table.number(key) != SAMPLE_RATE / FRAME_SAMPLES:
                raise table.fault(key, f"{SAMPLE_RATE / FRAME_SAMPLES}")
        hidden, heads = table.integer("hidden_size", 1, LARGEST_WIDTH), table.integer("num_attention_heads", 1)
        kv_heads, head_dim = table.integer("num_key_value_heads", 1), hidden // heads
        if table.has("head_dim"):
            head_dim = table.integer("head_dim", 2)
        if heads % kv_heads or head_dim % 2:
            raise table.fault("num_attention_heads", f"a multiple of num_key_value_heads ({kv_heads}), of even heads")
        compress, filters = table.integer("compress", 1), table.integer("num_filters", 1, LARGEST_WIDTH)
        if filters % compress:
            raise table.fault("num_filters", f"a multiple of compress, which is {compress}")
        quantizers = table.integer("num_quantizers", 2, MOST_LAYERS)
        codebook_dim = table.integer("codebook_dim", 1, LARGEST_WIDTH)
        inner = table.integer("vector_quantization_hidden_dimension", 1, LARGEST_WIDTH)
        if inner != codebook_dim or inner == hidden:
            raise table.fault("vector_quantization_hidden_dimension", f"codebook_dim ({codebook_dim}), not hidden_size")
        return cls(
            num_filters=filters,
            hidden_size=hidden,
            kernel_size=table.integer("kernel_size", 1, LARGEST_WIDTH),
            last_kernel_size=table.integer("last_kernel_size", 1, LARGEST_WIDTH),
            residual_kernel_size=table.integer("residual_kernel_size", 1, LARGEST_WIDTH),
            strides=ratios[::-1],
            num_residual_layers=table.integer("num_residual_layers", 0, 16),
            dilation_growth_rate=table.integer("dilation_growth_rate", 1, 16),
            compress=compress,
            intermediate_size=table.integer("intermediate_size", 1, LARGEST_WIDTH),
            num_layers=table.integer("num_hidden_layers", 1, MOST_LAYERS),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=table.number("norm_eps"),
            rope_theta=table.number("rope_theta"),
            num_quantizers=quantizers,
            num_semantic_quantizers=table.integer("num_semantic_quantizers", 1, quantizers - 1),
            codebook_size=table.integer("codebook_size", 1),
            codebook_dim=codebook_dim,
        )

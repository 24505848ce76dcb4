"""Sizes of the checkpoints that the project writes with random weights: tiny ones for tests, published shapes."""

from dataclasses import dataclass
from typing import Literal

from megatalker.checkpoint.config import Variant
from megatalker.testing.tokenizer import VOCAB_SIZE

__all__ = [
    "PUBLISHED_0B6",
    "PUBLISHED_1B7",
    "TINY",
    "TINY_1B7",
    "CheckpointRecipe",
    "CodecSizes",
    "SpeakerEncoderSizes",
    "StackSizes",
]


@dataclass(frozen=True, slots=True)
class StackSizes:
    """One transformer."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class CodecSizes:
    """The speech tokenizer. ``decoder_dim`` must be a multiple of 16, ``codebook_dim`` an even number."""

    decoder_dim: int
    latent_dim: int
    codebook_dim: int
    transformer: StackSizes
    """The decoder's; it has a sliding window of 72 frames, as published."""
    encoder: StackSizes
    encoder_filters: int
    encoder_quantizers: int = 16


@dataclass(frozen=True, slots=True)
class SpeakerEncoderSizes:
    """The Base variant's speaker encoder. ``channels`` must be a multiple of ``res2net_scale``."""

    channels: int
    attention_channels: int
    se_channels: int
    res2net_scale: int = 8


@dataclass(frozen=True, slots=True)
class CheckpointRecipe:
    """Everything that determines a written checkpoint, byte for byte. Change fields with ``dataclasses.replace``."""

    talker: StackSizes
    predictor: StackSizes
    codec: CodecSizes
    speaker_encoder: SpeakerEncoderSizes
    codebook_size: int
    """A power of two; the talker's vocabulary has 1024 ids more, for special, language and speaker codes."""
    text_hidden: int
    text_vocab: int = VOCAB_SIZE
    num_code_groups: int = 16
    max_positions: int = 32768
    """Most positions of the talker: prompt rows plus frames."""
    size: str = "0b6"
    """``tts_model_size``; the official package drops the instruction of CustomVoice checkpoints at ``0b6``."""
    variant: Variant = "custom_voice"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Stored type of the language model; the speech tokenizer is float32, as published."""
    seed: int = 0


TINY = CheckpointRecipe(
    talker=StackSizes(hidden=64, intermediate=96, layers=3, heads=4, kv_heads=2, head_dim=32),
    predictor=StackSizes(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, head_dim=32),
    codec=CodecSizes(
        decoder_dim=64,
        latent_dim=48,
        codebook_dim=32,
        transformer=StackSizes(hidden=32, intermediate=48, layers=8, heads=2, kv_heads=2, head_dim=24),
        encoder=StackSizes(hidden=32, intermediate=48, layers=1, heads=2, kv_heads=2, head_dim=16),
        encoder_filters=4,
    ),
    speaker_encoder=SpeakerEncoderSizes(channels=16, attention_channels=8, se_channels=8),
    codebook_size=128,
    text_hidden=48,
)
"""The smallest checkpoint that still has grouped queries, several layers and 16 code groups, for tests.

The codec's decoder has as many layers as published ones: each lets a frame hear of 71 frames more, so only a deep one
shows that a past of 150 is too short.
"""

TINY_1B7 = CheckpointRecipe(
    talker=StackSizes(hidden=96, intermediate=128, layers=2, heads=4, kv_heads=2, head_dim=32),
    predictor=TINY.predictor,
    codec=TINY.codec,
    speaker_encoder=TINY.speaker_encoder,
    codebook_size=TINY.codebook_size,
    text_hidden=TINY.text_hidden,
    size="1b7",
)
"""A checkpoint for tests, with a narrow predictor and instructions for CustomVoice as in the 1.7B models."""

_PUBLISHED_CODEC = CodecSizes(
    decoder_dim=1536,
    latent_dim=1024,
    codebook_dim=512,
    transformer=StackSizes(hidden=512, intermediate=1024, layers=8, heads=16, kv_heads=16, head_dim=64),
    encoder=StackSizes(hidden=512, intermediate=2048, layers=8, heads=8, kv_heads=8, head_dim=64),
    encoder_filters=64,
    encoder_quantizers=32,
)
_PUBLISHED_PREDICTOR = StackSizes(hidden=1024, intermediate=3072, layers=5, heads=16, kv_heads=8, head_dim=128)

PUBLISHED_0B6 = CheckpointRecipe(
    talker=StackSizes(hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head_dim=128),
    predictor=_PUBLISHED_PREDICTOR,
    codec=_PUBLISHED_CODEC,
    speaker_encoder=SpeakerEncoderSizes(channels=512, attention_channels=128, se_channels=128),
    codebook_size=2048,
    text_hidden=2048,
    text_vocab=151936,
    dtype="bfloat16",
)
"""The shapes of the 0.6B models, with random weights and a small tokenizer, for benchmarks. About 2 GB on disk."""

PUBLISHED_1B7 = CheckpointRecipe(
    talker=StackSizes(hidden=2048, intermediate=6144, layers=28, heads=16, kv_heads=8, head_dim=128),
    predictor=_PUBLISHED_PREDICTOR,
    codec=_PUBLISHED_CODEC,
    speaker_encoder=PUBLISHED_0B6.speaker_encoder,
    codebook_size=2048,
    text_hidden=2048,
    text_vocab=151936,
    size="1b7",
    dtype="bfloat16",
)
"""The shapes of the 1.7B models, for benchmarks. About 4.5 GB on disk."""

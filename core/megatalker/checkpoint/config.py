"""Shapes and special ids of a checkpoint, read from the official ``config.json`` files.

Facts: https://huggingface.co/Qwen (Qwen3-TTS 12 Hz configurations). Only what decoding needs is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, cast, get_args

from megatalker.checkpoint.fields import Table
from megatalker.errors import CheckpointError

CODEC_TYPE = "qwen3_tts_tokenizer_12hz"
SPECIAL_CODES = 1_024
"""Ids at the end of the talker's vocabulary that are no codes of the codec."""
MOST_LAYERS = 256
"""Most layers of any stack. A configuration with more is refused before memory is spent on it."""
WITHOUT_EFFECT = (
    "_name_or_path",
    "architectures",
    "assistant_token_id",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "im_end_token_id",
    "im_start_token_id",
    "initializer_range",
    "model_type",
    "pad_token_id",
    "position_id_per_seconds",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
"""Keys of official files that change nothing about inference: of training, of other libraries, or read by nobody."""
_CODEC_WITHOUT_EFFECT = (
    "layer_scale_initial_scale",  # the tensors hold the scales
    "max_position_embeddings",  # positions are computed, for any length
    "num_semantic_quantizers",  # officially always 1
    "semantic_codebook_size",
    "vector_quantization_hidden_dimension",
)
Variant = Literal["custom_voice", "voice_design", "base"]

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920
FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE
_CODEC_RATES = {
    "input_sample_rate": SAMPLE_RATE,
    "decode_upsample_rate": FRAME_SAMPLES,
    "encode_downsample_rate": FRAME_SAMPLES,
}


@dataclass(frozen=True, slots=True)
class TransformerStack:
    """Sizes of transformer layers."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class TransformerShape(TransformerStack):
    """One decoder stack: the talker, or the code predictor."""

    vocab_size: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The language-model half of a checkpoint."""

    variant: Variant
    size: str
    """The official ``tts_model_size``, such as ``0b6`` or ``1b7``."""
    talker: TransformerShape
    predictor: TransformerShape
    num_code_groups: int
    text_hidden_size: int
    text_vocab_size: int
    codec_bos_id: int
    codec_eos_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    tts_bos_id: int
    tts_eos_id: int
    tts_pad_id: int
    languages: Mapping[str, int]
    """Language (and dialect) name -> codec id."""
    speakers: Mapping[str, int]
    """Speaker name -> codec id; empty unless ``custom_voice``."""
    dialects: Mapping[str, str]
    """Speakers of a dialect -> the name of that dialect in ``languages``."""

    @property
    def projects_predictor(self) -> bool:
        """The predictor is narrower than the talker and stands behind ``small_to_mtp_projection``."""
        return self.predictor.hidden_size != self.talker.hidden_size

    @property
    def takes_instruct(self) -> bool:
        """An instruction changes the speech; officially the others are given none."""
        return self.variant == "voice_design" or (self.variant == "custom_voice" and self.size != "0b6")

    @property
    def first_suppressed_id(self) -> int:
        """Ids from here on, end-of-speech excepted, are never chosen as code 0 (official ``suppress_tokens``)."""
        return self.talker.vocab_size - SPECIAL_CODES

    @property
    def code_limits(self) -> tuple[int, ...]:
        """One for each code group: a code of a frame is below it."""
        return self.first_suppressed_id, *[self.predictor.vocab_size] * (self.num_code_groups - 1)

    @classmethod
    def parse(cls, raw: Mapping[str, Any], file: Path | str = "config.json") -> "ModelConfig":
        """Read an official ``config.json``, already parsed; errors call it ``file``.

        Raises:
            CheckpointError: a value is missing, of the wrong type, or of a kind this engine does not know.
        """
        return cls.read(Table(file, raw))

    @classmethod
    def read(cls, whole: Table) -> "ModelConfig":
        """Read a configuration as :meth:`parse` does, but accept keys that ``whole.unread()`` would report."""
        whole.ignore(*WITHOUT_EFFECT)
        whole.skip("speaker_encoder_config")  # read by megatalker.checkpoint.encoder_config
        whole.demand("quantization_config", None)
        whole.text("model_type", "qwen3_tts")
        whole.text("tokenizer_type", CODEC_TYPE)
        talker = whole.table("talker_config")
        predictor = talker.table("code_predictor_config")
        for part in (talker, predictor):
            _refuse_unknown_arithmetic(part)
            _refuse_sliding_windows(part)
            part.demand("tie_word_embeddings", False)
        predictor.demand_all("layer_types", "full_attention")
        groups = talker.integer("num_code_groups", 2, MOST_LAYERS)
        predictor.demand("num_code_groups", groups)
        return cls(
            variant=cast("Variant", whole.text("tts_model_type", *get_args(Variant))),
            size=whole.text("tts_model_size"),
            talker=_shape(talker, smallest_vocabulary=SPECIAL_CODES + 1),
            predictor=_shape(predictor),
            num_code_groups=groups,
            text_hidden_size=talker.integer("text_hidden_size", 1),
            text_vocab_size=talker.integer("text_vocab_size", 1),
            codec_bos_id=talker.integer("codec_bos_id"),
            codec_eos_id=talker.integer("codec_eos_token_id"),
            codec_pad_id=talker.integer("codec_pad_id"),
            codec_think_id=talker.integer("codec_think_id"),
            codec_nothink_id=talker.integer("codec_nothink_id"),
            codec_think_bos_id=talker.integer("codec_think_bos_id"),
            codec_think_eos_id=talker.integer("codec_think_eos_id"),
            tts_bos_id=whole.integer("tts_bos_token_id"),
            tts_eos_id=whole.integer("tts_eos_token_id"),
            tts_pad_id=whole.integer("tts_pad_token_id"),
            languages=talker.ids("codec_language_id"),
            speakers=talker.ids("spk_id") if talker.has("spk_id") else {},
            dialects=talker.names("spk_is_dialect") if talker.has("spk_is_dialect") else {},
        )


def _shape(table: Table, smallest_vocabulary: int = 1) -> TransformerShape:
    return TransformerShape(
        **_stack(table, _even(table, "head_dim")),
        vocab_size=table.integer("vocab_size", smallest_vocabulary),
        max_positions=table.integer("max_position_embeddings", 2),
    )


def _stack(table: Table, head_dim: int | None) -> dict[str, Any]:
    """Fields of a :class:`TransformerStack`."""
    heads, kv_heads = table.integer("num_attention_heads", 1), table.integer("num_key_value_heads", 1)
    if heads % kv_heads:
        raise table.fault("num_attention_heads", f"a multiple of num_key_value_heads, which is {kv_heads}")
    hidden_size = table.integer("hidden_size", 1)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": table.integer("intermediate_size", 1),
        "num_layers": table.integer("num_hidden_layers", 1, MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim or hidden_size // heads,
        "rms_norm_eps": table.number("rms_norm_eps"),
        "rope_theta": table.number("rope_theta"),
    }


def _even(table: Table, key: str) -> int:
    size = table.integer(key, 2)
    if size % 2:
        raise table.fault(key, "an even number, for rotary positions")
    return size


def _refuse_unknown_arithmetic(table: Table) -> None:
    table.ignore(*WITHOUT_EFFECT)
    table.demand("hidden_act", "silu")
    table.demand("attention_bias", False)
    if table.has("rope_scaling"):
        rope = table.table("rope_scaling")
        rope.demand("rope_type", "default")
        rope.demand("type", "default")
        rope.ignore("interleaved", "mrope_section")  # speech has one position a row, which they give to all three axes


def _refuse_sliding_windows(table: Table) -> None:
    table.ignore("max_window_layers", "sliding_window")
    if table.flag("use_sliding_window", default=False):
        table.demand("sliding_window", None)


@dataclass(frozen=True, slots=True)
class CodecConfig(TransformerStack):
    """The speech tokenizer's decoder (codes to waveform), from ``speech_tokenizer/config.json``."""

    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    latent_dim: int
    sliding_window: int
    decoder_dim: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]

    @classmethod
    def parse(cls, raw: Mapping[str, Any], file: Path | str = "speech_tokenizer/config.json") -> "CodecConfig":
        """Read an official ``speech_tokenizer/config.json``, as :meth:`ModelConfig.parse`.

        Raises:
            CheckpointError: as there; also when one frame is not 1920 samples at 24 kHz.
        """
        return cls.read(Table(file, raw))

    @classmethod
    def read(cls, whole: Table) -> "CodecConfig":
        """Read a configuration as :meth:`ModelConfig.read` does."""
        whole.ignore(*WITHOUT_EFFECT)
        whole.skip("encoder_config", "encoder_valid_num_quantizers")  # read by megatalker.checkpoint.encoder_config
        whole.text("model_type", CODEC_TYPE)
        for key, value in _CODEC_RATES.items():
            whole.demand(key, value)
        decoder = whole.table("decoder_config")
        _refuse_unknown_arithmetic(decoder)
        decoder.ignore(*_CODEC_WITHOUT_EFFECT)
        config = cls(
            **_stack(decoder, _even(decoder, "head_dim") if decoder.has("head_dim") else None),
            num_quantizers=decoder.integer("num_quantizers", 2, MOST_LAYERS),
            codebook_size=decoder.integer("codebook_size", 1),
            codebook_dim=_even(decoder, "codebook_dim"),
            latent_dim=decoder.integer("latent_dim", 1),
            sliding_window=decoder.integer("sliding_window", 1),
            decoder_dim=decoder.integer("decoder_dim", 1),
            upsample_rates=decoder.integers("upsample_rates", 1, FRAME_SAMPLES),
            upsampling_ratios=decoder.integers("upsampling_ratios", 1, FRAME_SAMPLES),
        )
        sample_rate = whole.integer("output_sample_rate", 1)
        samples = prod((*config.upsample_rates, *config.upsampling_ratios))
        if (samples, sample_rate) != (FRAME_SAMPLES, SAMPLE_RATE):
            raise CheckpointError(
                f"{whole.file}: a frame (the product of decoder_config.upsample_rates and upsampling_ratios) is "
                f"{samples} samples at output_sample_rate {sample_rate}, expected {FRAME_SAMPLES} at "
                f"{SAMPLE_RATE} (the 12.5 Hz codec)"
            )
        return config

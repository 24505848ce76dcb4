"""Shapes and special ids of a checkpoint, read from the official ``config.json`` files.

Facts: https://huggingface.co/Qwen (Qwen3-TTS 12 Hz configurations). Only what decoding needs is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from megatalker.errors import CheckpointError

Variant = Literal["custom_voice", "voice_design", "base"]

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920
FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """One decoder stack: the talker, or the code predictor."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
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
    def first_suppressed_id(self) -> int:
        """Ids from here on, end-of-speech excepted, are never chosen as code 0 (official ``suppress_tokens``)."""
        return self.talker.vocab_size - 1024

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Read an official ``config.json``.

        Raises:
            CheckpointError: a field is missing, of the wrong type, or of a kind this engine does not know.
        """
        try:
            return cls._parse(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"config.json is not a Qwen3-TTS configuration: {type(error).__name__}: {error}. "
                "Expected the file of an official 12 Hz checkpoint."
            ) from error

    @classmethod
    def _parse(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        if raw["model_type"] != "qwen3_tts":
            raise ValueError(f"model_type is {raw['model_type']!r}, expected 'qwen3_tts'")
        if raw["tokenizer_type"] != "qwen3_tts_tokenizer_12hz":
            raise ValueError(
                f"tokenizer_type is {raw['tokenizer_type']!r}; only 'qwen3_tts_tokenizer_12hz' is supported"
            )
        if raw["tts_model_type"] not in get_args(Variant):
            raise ValueError(f"tts_model_type is {raw['tts_model_type']!r}, expected one of {get_args(Variant)}")
        talker, predictor = raw["talker_config"], raw["talker_config"]["code_predictor_config"]
        for name, part in (("talker_config", talker), ("code_predictor_config", predictor)):
            _refuse_unknown_arithmetic(name, part)
        return cls(
            variant=raw["tts_model_type"],
            size=str(raw["tts_model_size"]),
            talker=_shape(talker),
            predictor=_shape(predictor),
            num_code_groups=int(talker["num_code_groups"]),
            text_hidden_size=int(talker["text_hidden_size"]),
            text_vocab_size=int(talker["text_vocab_size"]),
            codec_bos_id=int(talker["codec_bos_id"]),
            codec_eos_id=int(talker["codec_eos_token_id"]),
            codec_pad_id=int(talker["codec_pad_id"]),
            codec_think_id=int(talker["codec_think_id"]),
            codec_nothink_id=int(talker["codec_nothink_id"]),
            codec_think_bos_id=int(talker["codec_think_bos_id"]),
            codec_think_eos_id=int(talker["codec_think_eos_id"]),
            tts_bos_id=int(raw["tts_bos_token_id"]),
            tts_eos_id=int(raw["tts_eos_token_id"]),
            tts_pad_id=int(raw["tts_pad_token_id"]),
            languages={str(k).lower(): int(v) for k, v in talker["codec_language_id"].items()},
            speakers={str(k).lower(): int(v) for k, v in (talker.get("spk_id") or {}).items()},
            dialects={str(k).lower(): str(v) for k, v in (talker.get("spk_is_dialect") or {}).items() if v},
        )


def _shape(raw: Mapping[str, Any]) -> TransformerShape:
    return TransformerShape(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=int(raw["num_attention_heads"]),
        num_kv_heads=int(raw["num_key_value_heads"]),
        head_dim=int(raw["head_dim"]),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(raw["rope_theta"]),
        max_positions=int(raw["max_position_embeddings"]),
    )


def _refuse_unknown_arithmetic(name: str, raw: Mapping[str, Any]) -> None:
    expected = {"hidden_act": "silu", "attention_bias": False, "sliding_window": None}
    for key, value in expected.items():
        if raw.get(key, value) != value and not (key == "sliding_window" and not raw.get("use_sliding_window")):
            raise ValueError(f"{name}.{key} is {raw[key]!r}, expected {value!r}")
    rope = (raw.get("rope_scaling") or {}).get("rope_type", "default")
    if rope != "default":
        raise ValueError(f"{name}.rope_scaling.rope_type is {rope!r}, expected 'default'")


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The speech tokenizer's decoder (codes to waveform), from ``speech_tokenizer/config.json``."""

    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    decoder_dim: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "CodecConfig":
        """Read an official ``speech_tokenizer/config.json``.

        Raises:
            CheckpointError: as :meth:`ModelConfig.parse`; also when one frame is not 1920 samples at 24 kHz.
        """
        try:
            decoder = raw["decoder_config"]
            config = cls(
                num_quantizers=int(decoder["num_quantizers"]),
                codebook_size=int(decoder["codebook_size"]),
                codebook_dim=int(decoder["codebook_dim"]),
                latent_dim=int(decoder["latent_dim"]),
                hidden_size=int(decoder["hidden_size"]),
                intermediate_size=int(decoder["intermediate_size"]),
                num_layers=int(decoder["num_hidden_layers"]),
                num_heads=int(decoder["num_attention_heads"]),
                num_kv_heads=int(decoder["num_key_value_heads"]),
                head_dim=int(decoder.get("head_dim") or decoder["hidden_size"] // decoder["num_attention_heads"]),
                rms_norm_eps=float(decoder["rms_norm_eps"]),
                rope_theta=float(decoder["rope_theta"]),
                sliding_window=int(decoder["sliding_window"]),
                decoder_dim=int(decoder["decoder_dim"]),
                upsample_rates=tuple(int(rate) for rate in decoder["upsample_rates"]),
                upsampling_ratios=tuple(int(ratio) for ratio in decoder["upsampling_ratios"]),
            )
            sample_rate = int(raw["output_sample_rate"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "speech_tokenizer/config.json is not a 12 Hz speech tokenizer configuration: "
                f"{type(error).__name__}: {error}"
            ) from error
        samples = 1
        for factor in (*config.upsample_rates, *config.upsampling_ratios):
            samples *= factor
        if (samples, sample_rate) != (FRAME_SAMPLES, SAMPLE_RATE):
            raise CheckpointError(
                f"speech_tokenizer: a frame is {samples} samples at {sample_rate} Hz, "
                f"expected {FRAME_SAMPLES} at {SAMPLE_RATE} Hz (the 12.5 Hz codec)"
            )
        return config

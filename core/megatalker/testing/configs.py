"""The JSON files of a checkpoint that the project writes itself, with the keys of the published files."""

from typing import Any

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.testing.recipe import CheckpointRecipe, SpeakerEncoderSizes, StackSizes
from megatalker.testing.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE

# Offsets into the 1024 ids above the codebook, as published (where the codebook has 2048 entries).
_SPECIAL_CODES = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_think_id": 106,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
_LANGUAGES = {
    "chinese": 7,
    "english": 2,
    "german": 5,
    "italian": 22,
    "portuguese": 23,
    "spanish": 6,
    "japanese": 10,
    "korean": 16,
    "french": 13,
    "russian": 21,
    "beijing_dialect": 26,
    "sichuan_dialect": 14,
}
_SPEAKERS = {
    "serena": 1018,
    "vivian": 1017,
    "uncle_fu": 962,
    "ryan": 1013,
    "aiden": 813,
    "ono_anna": 825,
    "sohee": 816,
    "eric": 827,
    "dylan": 830,
}
_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


def model_config(recipe: CheckpointRecipe, assistant_id: int) -> dict[str, Any]:
    """``config.json``; ``assistant_id`` is the text id of the word "assistant"."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": assistant_id,
        "im_end_token_id": _text_id("<|im_end|>"),
        "im_start_token_id": _text_id("<|im_start|>"),
        "tts_bos_token_id": _text_id("<tts_text_bos>"),
        "tts_eos_token_id": _text_id("<tts_text_eod>"),
        "tts_pad_token_id": _text_id("<tts_pad>"),
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": recipe.size,
        "tts_model_type": recipe.variant,
        "talker_config": _talker_config(recipe),
    }
    if recipe.variant == "base":
        config["speaker_encoder_config"] = speaker_encoder_config(recipe.speaker_encoder, recipe.talker.hidden)
    return config


def generation_config() -> dict[str, Any]:
    """``generation_config.json``, with the published values."""
    return {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }


def speaker_encoder_config(sizes: SpeakerEncoderSizes, output: int) -> dict[str, Any]:
    """``speaker_encoder_config``, spelt out; the official class refuses any other key."""
    return {
        "mel_dim": 128,
        "enc_dim": output,
        "enc_channels": [sizes.channels] * 4 + [sizes.channels * 3],
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_attention_channels": sizes.attention_channels,
        "enc_res2net_scale": sizes.res2net_scale,
        "enc_se_channels": sizes.se_channels,
        "sample_rate": SAMPLE_RATE,
    }


def codec_config(recipe: CheckpointRecipe) -> dict[str, Any]:
    """``speech_tokenizer/config.json``."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": recipe.num_code_groups,
        "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": SAMPLE_RATE,
        "decode_upsample_rate": FRAME_SAMPLES,
        "encode_downsample_rate": FRAME_SAMPLES,
        "decoder_config": _codec_decoder_config(recipe),
        "encoder_config": _codec_encoder_config(recipe),
    }


def feature_extractor_config() -> dict[str, Any]:
    """``speech_tokenizer/preprocessor_config.json``."""
    return {
        "chunk_length_s": None,
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "overlap": None,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": SAMPLE_RATE,
    }


def _text_id(token: str) -> int:
    return VOCAB_SIZE - len(SPECIAL_TOKENS) + SPECIAL_TOKENS.index(token)


def _talker_config(recipe: CheckpointRecipe) -> dict[str, Any]:
    speaks = recipe.variant == "custom_voice"
    base = recipe.codebook_size
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "code_predictor_config": _predictor_config(recipe),
        **{name: base + offset for name, offset in _SPECIAL_CODES.items()},
        "codec_language_id": {name: base + offset for name, offset in _LANGUAGES.items()},
        "spk_id": {name: base + offset for name, offset in _SPEAKERS.items()} if speaks else {},
        "spk_is_dialect": {name: _DIALECTS.get(name, False) for name in _SPEAKERS} if speaks else {},
        **_stack(recipe.talker),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": recipe.max_positions,
        "model_type": "qwen3_tts_talker",
        "num_code_groups": recipe.num_code_groups,
        "position_id_per_seconds": 13,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": _mrope_section(recipe.talker.head_dim),
            "rope_type": "default",
            "type": "default",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "text_hidden_size": recipe.text_hidden,
        "text_vocab_size": recipe.text_vocab,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": recipe.codebook_size + 1024,
    }


def _predictor_config(recipe: CheckpointRecipe) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        **_stack(recipe.predictor),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * recipe.predictor.layers,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": recipe.num_code_groups,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": recipe.codebook_size,
    }


def _stack(sizes: StackSizes) -> dict[str, int]:
    return {
        "head_dim": sizes.head_dim,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
    }


def _mrope_section(head_dim: int) -> list[int]:
    """[24, 20, 20] for the published 128, and the same shares of other widths."""
    half = head_dim // 2
    side = half * 20 // 64
    return [half - 2 * side, side, side]


def _codec_decoder_config(recipe: CheckpointRecipe) -> dict[str, Any]:
    codec = recipe.codec
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "latent_dim": codec.latent_dim,
        "codebook_dim": codec.codebook_dim,
        "codebook_size": recipe.codebook_size,
        "decoder_dim": codec.decoder_dim,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        **_stack(codec.transformer),
        "num_quantizers": recipe.num_code_groups,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": codec.codebook_dim,
    }


def _codec_encoder_config(recipe: CheckpointRecipe) -> dict[str, Any]:
    codec = recipe.codec
    return {
        "_frame_rate": SAMPLE_RATE / FRAME_SAMPLES,
        "audio_channels": 1,
        "num_filters": codec.encoder_filters,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "residual_kernel_size": 3,
        "upsampling_ratios": [8, 6, 5, 4],
        "num_residual_layers": 1,
        "dilation_growth_rate": 2,
        **_stack(codec.encoder),
        "num_quantizers": codec.encoder_quantizers,
        "num_semantic_quantizers": 1,
        "codebook_size": recipe.codebook_size,
        "codebook_dim": codec.codebook_dim // 2,
        "upsample_groups": codec.encoder.hidden,
        "use_causal_conv": True,
        "pad_mode": "constant",
        "norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 250,
        "attention_bias": False,
        "hidden_act": "gelu",
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "use_conv_shortcut": False,
        "trim_right_ratio": 1.0,
        "vector_quantization_hidden_dimension": codec.codebook_dim // 2,
        "compress": 2,
        "sampling_rate": SAMPLE_RATE,
    }

"""Writes checkpoints with random weights in the official layout."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from megatalker.checkpoint.config import CodecConfig, ModelConfig
from megatalker.checkpoint.encoder_config import CodecEncoderConfig, SpeakerEncoderConfig
from megatalker.checkpoint.shapes import (
    Shapes,
    codec_decoder_shapes,
    codec_encoder_shapes,
    codec_unused_shapes,
    speaker_encoder_shapes,
    talker_shapes,
)
from megatalker.testing.configs import codec_config, feature_extractor_config, generation_config, model_config
from megatalker.testing.recipe import PUBLISHED_0B6, PUBLISHED_1B7, TINY, TINY_1B7, CheckpointRecipe
from megatalker.testing.special import Change, unchanged
from megatalker.testing.tokenizer import TOKENIZER_FILES, TOKENIZER_FOLDER
from megatalker.testing.weights import random_tensor

__all__ = ["PUBLISHED_0B6", "PUBLISHED_1B7", "TINY", "TINY_1B7", "CheckpointRecipe", "write_checkpoint"]


def write_checkpoint(folder: Path, recipe: CheckpointRecipe, change: Change = unchanged) -> Path:
    """Write every file of a checkpoint; the same recipe gives the same bytes on every machine.

    Args:
        folder: created with its parents; files of the same names are overwritten.
        recipe: sizes, variant, stored type and seed.
        change: makes a special model of a random one (:mod:`megatalker.testing.special`): called with the official name
            and the float32 values of each tensor of the language model, which it may change in place.

    Returns:
        ``folder``.
    """
    codec_folder = folder / "speech_tokenizer"
    codec_folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER_FOLDER / name, folder / name)
    vocabulary = json.loads((TOKENIZER_FOLDER / "vocab.json").read_text(encoding="utf-8"))
    model, codec = model_config(recipe, assistant_id=vocabulary["assistant"]), codec_config(recipe)
    _write_json(folder / "config.json", model)
    _write_json(folder / "generation_config.json", generation_config())
    _write_json(codec_folder / "config.json", codec)
    _write_json(codec_folder / "preprocessor_config.json", feature_extractor_config())
    _write_model(folder, recipe, model, change)
    _write_codec(codec_folder, recipe, codec)
    return folder


def _write_model(folder: Path, recipe: CheckpointRecipe, raw: Mapping[str, Any], change: Change) -> None:
    config = ModelConfig.parse(raw)
    shapes = talker_shapes(config)
    if "speaker_encoder_config" in raw:
        shapes |= speaker_encoder_shapes(SpeakerEncoderConfig.read(raw["speaker_encoder_config"]))
    dtype = getattr(torch, recipe.dtype)
    _write_tensors(folder / "model.safetensors", shapes, recipe.seed, config.codec_eos_id, dtype, change)


def _write_codec(folder: Path, recipe: CheckpointRecipe, raw: Mapping[str, Any]) -> None:
    config = CodecConfig.parse(raw)
    shapes = codec_decoder_shapes(config) | codec_unused_shapes(config)
    shapes |= codec_encoder_shapes(CodecEncoderConfig.parse(raw))
    _write_tensors(folder / "model.safetensors", shapes, recipe.seed, 0, torch.float32)


def _write_tensors(
    path: Path, shapes: Shapes, seed: int, end_id: int, dtype: torch.dtype, change: Change = unchanged
) -> None:
    tensors = {}
    for name, shape in shapes.items():
        values = random_tensor(name, shape, seed, end_id)
        change(name, values)
        tensors[name] = torch.from_numpy(values).to(dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

"""Writes a trained talker as an official checkpoint: all files but the speech tokenizer's."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from megatalker.checkpoint.config import ModelConfig
from megatalker.testing.configs import generation_config, model_config
from megatalker.testing.recipe import CheckpointRecipe
from megatalker.testing.tokenizer import TOKENIZER_FILES
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.talker_model import TrainableTalker

LANGUAGE = "english"
_FIRST_SPEAKER, _LANGUAGE_ID = 1013, 2
"""Offsets above the codebook, as in the published files."""
_MAX_FRAMES = 2048
_TEMPERATURE, _TOP_K = 0.3, 50
"""Measured to speak clearly; a model of this size is too uncertain for the published 0.9."""


def voice_config(recipe: CheckpointRecipe, tokenizer: Path) -> dict[str, Any]:
    """Return ``config.json``: our speakers, unless recordings define them; one language."""
    vocabulary = json.loads((tokenizer / "vocab.json").read_text(encoding="utf-8"))
    config = model_config(recipe, assistant_id=vocabulary["assistant"])
    base, speakers = recipe.codebook_size, SPEAKERS if recipe.variant == "custom_voice" else ()
    config["talker_config"] |= {
        "spk_id": {speaker.name: base + _FIRST_SPEAKER + index for index, speaker in enumerate(speakers)},
        "spk_is_dialect": {speaker.name: False for speaker in speakers},
        "codec_language_id": {LANGUAGE: base + _LANGUAGE_ID},
    }
    return config


def parsed_config(recipe: CheckpointRecipe, tokenizer: Path) -> ModelConfig:
    """The same, as the engine reads it."""
    return ModelConfig.parse(voice_config(recipe, tokenizer))


def voice_generation_config() -> dict[str, Any]:
    """``generation_config.json``, tuned."""
    return generation_config() | {
        "repetition_penalty": 1.0,
        "temperature": _TEMPERATURE,
        "top_k": _TOP_K,
        "subtalker_temperature": _TEMPERATURE,
        "subtalker_top_k": _TOP_K,
        "max_new_tokens": _MAX_FRAMES,
    }


def export_talker(
    talker: TrainableTalker, recipe: CheckpointRecipe, tokenizer: Path, folder: Path, encoder: nn.Module | None = None
) -> None:
    """Write configuration, sampling defaults, tokenizer and weights; ``encoder``: the speaker encoder's, too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, folder / name)
    dtype = getattr(torch, recipe.dtype)
    # clone: parameters are pieces of one long row
    parameters = [(f"talker.{name}", value) for name, value in talker.named_parameters()]
    if encoder is not None:
        parameters += [(f"speaker_encoder.{name}", value) for name, value in encoder.named_parameters()]
    tensors = {name: value.detach().cpu().to(dtype).clone() for name, value in parameters}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config", voice_config(recipe, tokenizer)),
        ("generation_config", voice_generation_config()),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

"""Writes a trained codec as an official ``speech_tokenizer`` folder, and rounds it to what is written."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from megatalker.testing.configs import codec_config, feature_extractor_config
from megatalker.testing.recipe import CheckpointRecipe
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.quantiser import Codebook, ResidualQuantiser

STORED = torch.bfloat16
_FAR = 1000.0
"""Where the encoder's entries for unused codes are: never the nearest."""


@torch.no_grad()
def round_to_stored(*modules: nn.Module) -> None:
    """Give weights and codebooks the precision they are shipped with: codes made before that would differ."""
    for module in modules:
        # only shipped buffers: others, such as rotary frequencies, stay as they are
        books = [part.entries for part in module.modules() if isinstance(part, Codebook)]
        for tensor in (*module.parameters(), *books):
            tensor.copy_(tensor.to(STORED).to(tensor.dtype))


def export_codec(codec: TrainableCodec, recipe: CheckpointRecipe, folder: Path) -> None:
    """Write configuration, feature extractor settings and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in codec.official.state_dict().items()}
    for quantiser, decoder, encoder in (
        (codec.first, "rvq_first", "semantic_residual_vector_quantizer"),
        (codec.rest, "rvq_rest", "acoustic_residual_vector_quantizer"),
    ):
        tensors |= _codebooks(quantiser, recipe.codebook_size, decoder, encoder)
    save_file(
        {name: tensor.to(STORED).contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    for name, content in (("config", codec_config(recipe)), ("preprocessor_config", feature_extractor_config())):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_codec(folder: Path, recipe: CheckpointRecipe, sizes: Sequence[int]) -> TrainableCodec:
    """A codec from a written ``speech_tokenizer`` folder."""
    codec = TrainableCodec(recipe, sizes)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    codec.official.load_state_dict(tensors)
    for quantiser, name in ((codec.first, "rvq_first"), (codec.rest, "rvq_rest")):
        for index, level in enumerate(quantiser.levels):
            assert isinstance(level, Codebook)
            level.entries.copy_(
                tensors[f"decoder.quantizer.{name}.vq.layers.{index}._codebook.embedding_sum"][: level.size]
            )
    return codec.eval().requires_grad_(False)


def _codebooks(quantiser: ResidualQuantiser, size: int, decoder: str, encoder: str) -> dict[str, Tensor]:
    tensors = {}
    for index, level in enumerate(quantiser.levels):
        assert isinstance(level, Codebook)
        used = level.entries.cpu()
        # a decoder that is handed an unused code shall still speak
        ours = f"decoder.quantizer.{decoder}.vq.layers.{index}._codebook"
        tensors[f"{ours}.embedding_sum"] = used[torch.arange(size) % level.size]
        tensors[f"{ours}.cluster_usage"] = torch.ones(size)
        theirs = f"encoder.quantizer.{encoder}.layers.{index}.codebook"
        tensors[f"{theirs}.embed_sum"] = torch.cat([used, torch.full((size - level.size, used.shape[1]), _FAR)])
        tensors[f"{theirs}.cluster_usage"] = torch.ones(size)
    return tensors

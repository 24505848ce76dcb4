"""The checkpoint that a voice's training begins with, and the storage of a successor with its package."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatalker.checkpoint.difference import DIFFERENCE, WEIGHTS, apply_difference, difference

_WHOLE = ("codebook",)
"""The encoder and the decoder of the codec must read the same entries."""


def weights_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, as they are stored."""
    return load_file(folder / WEIGHTS)


def store_difference(folder: Path, parent: Path) -> None:
    """Replace a folder's weights by those that storing only their difference leaves, and write that difference, too."""
    base = weights_of(parent)
    stored = difference(base, weights_of(folder), whole=_WHOLE)
    save_file(stored, folder / DIFFERENCE, metadata={"format": "pt"})
    save_file(apply_difference(base, stored), folder / WEIGHTS, metadata={"format": "pt"})


def talker_weights(folder: Path) -> dict[str, Tensor]:
    """A checkpoint's talker, by the names that training uses, in float32."""
    names = {name: tensor for name, tensor in weights_of(folder).items() if name.startswith("talker.")}
    return {name.removeprefix("talker."): tensor.to(torch.float32) for name, tensor in names.items()}

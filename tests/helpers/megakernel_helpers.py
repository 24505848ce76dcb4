"""The ``megakernel`` decoder on both devices of its tests."""

from typing import Any

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import LoadContext
from megatalker.plugins.checked import CheckedTalker
from megatalker_backends.megakernel.decoder import MegakernelDecoder
from megatalker_backends.megakernel.settings import MegakernelSettings

CPU = torch.device("cpu")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no GPU")),
]
"""The specification on a CPU, the kernel on a GPU."""
POSITIONS = 200
"""Positions of every decoder, so that a GPU compiles one kernel for each checkpoint."""


def megakernel(checkpoint: Checkpoint, device: str = "cpu", **settings: Any) -> CheckedTalker:
    """Loaded, and not warmed up."""
    own = MegakernelSettings(interpret=device == "cpu", **{"max_positions": POSITIONS, **settings})
    return CheckedTalker(
        MegakernelDecoder(checkpoint, LoadContext(torch.device(device), torch.bfloat16, own)), checkpoint.config
    )


def within(talker: CheckedTalker) -> MegakernelDecoder:
    """Return the decoder inside the shell."""
    assert isinstance(talker.decoder, MegakernelDecoder)
    return talker.decoder


def some_codes(checkpoint: Checkpoint, frames: int) -> list[list[int]]:
    """Arbitrary frames to force."""
    vocab, groups = checkpoint.config.predictor.vocab_size, checkpoint.config.num_code_groups
    return torch.randint(vocab, (frames, groups), generator=torch.Generator().manual_seed(5)).tolist()

"""What tests of the ``streaming`` codec decode, and how near it must come."""

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig

TOLERANCE = 1e-4
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def random_codes(config: CodecConfig, frames: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (frames, config.num_quantizers), generator=generator)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected.cpu(), atol=TOLERANCE, rtol=0)

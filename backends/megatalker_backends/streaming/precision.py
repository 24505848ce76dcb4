"""Keeps matrix products at the precision this codec promises, whatever the rest of the program has chosen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_precision(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Within the block, float32 products on ``device`` are exact float32, or TensorFloat-32 if ``tf32``."""
    cuda = device.type == "cuda"
    backend = torch.backends.cuda.matmul if cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    backend.fp32_precision = "tf32" if tf32 and cuda else "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before

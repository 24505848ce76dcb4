"""Keeps matrix products of torch at the precision this codec promises, whatever the rest of the program has chosen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Within the block, float32 products on ``device`` are exact float32."""
    cuda = device.type == "cuda"
    backend = torch.backends.cuda.matmul if cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before

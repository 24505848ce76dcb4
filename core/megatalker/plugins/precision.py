"""Keeps products of torch at the precision that is promised, whatever the rest of the program has chosen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Within the block, float32 products and convolutions on ``device`` are exact float32."""
    cuda, backends = device.type == "cuda", torch.backends
    matmul = backends.cuda.matmul if cuda else backends.mkldnn.matmul  # type: ignore[attr-defined]
    convolution = backends.cudnn.conv if cuda else backends.mkldnn.conv  # type: ignore[attr-defined]
    before = [(part, part.fp32_precision) for part in (matmul, convolution)]
    for part, _ in before:
        part.fp32_precision = "ieee"
    try:
        yield
    finally:
        for part, precision in before:
            part.fp32_precision = precision

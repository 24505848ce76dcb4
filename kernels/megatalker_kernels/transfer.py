"""Host to device without waiting for what the device is doing."""

import torch
from torch import Tensor

TAKEN_AT_ONCE = 2**13
"""Bytes that the driver itself buffers, from any host memory: hundreds of such copies fit into its queue."""


def send(tensor: Tensor, device: torch.device, *, into: Tensor | None = None) -> Tensor:
    """A copy on ``device``, in stream order, or what it was copied into there. ``tensor`` may be overwritten at once:
    the page-locked copy of a larger one is torch's own, and is kept until it has been read.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and tensor.nbytes > TAKEN_AT_ONCE:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True) if into is None else into.copy_(tensor, non_blocking=True)

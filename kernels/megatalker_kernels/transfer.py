"""Host to device without waiting for what the device is doing."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device, *, into: Tensor | None = None) -> Tensor:
    """A copy on ``device``, in stream order, or what it was copied into there. The page-locked copy on the way is
    torch's own, and is kept until it has been read.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True) if into is None else into.copy_(tensor, non_blocking=True)

"""Memory in use, as Python, torch and the operating system report it."""

import gc
import os
import sys
from pathlib import Path

import torch

ALLOWED = {"Python objects": 18, "bytes of tensors": 1024, "bytes on the GPU": 1024, "resident bytes": 2 << 20}
"""Largest growth of each kind of memory while two dozen streams come and go, and again while two dozen more do."""


def in_use(device: torch.device) -> dict[str, int]:
    """Return the memory in use after a collection, for each name of :data:`ALLOWED` that this machine can measure."""
    gc.collect()
    sys._clear_type_cache()  # it holds on to names that nobody uses any more
    used = {"Python objects": sys.getallocatedblocks(), "bytes of tensors": _tensors()}
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        used["bytes on the GPU"] = torch.cuda.memory_allocated(device)
    status = Path("/proc/self/statm")
    if status.exists():
        used["resident bytes"] = int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return used


def _tensors() -> int:
    """Each storage once, however many tensors share it."""
    found = [item for item in gc.get_objects() if type(item) in (torch.Tensor, torch.nn.Parameter)]
    storages = [each.untyped_storage() for each in found if each.layout == torch.strided and not each.is_meta]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

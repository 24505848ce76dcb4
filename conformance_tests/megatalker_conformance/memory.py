"""How much memory is in use, by those who can tell."""

import gc
import os
import tracemalloc
from pathlib import Path

import torch


def in_use(device: torch.device) -> dict[str, int]:
    """Bytes, after a collection; Python's own where ``tracemalloc`` runs."""
    gc.collect()
    used = {"Python objects": tracemalloc.get_traced_memory()[0], "tensors": _tensors()}
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        used["GPU memory"] = torch.cuda.memory_allocated(device)
    status = Path("/proc/self/statm")
    if status.exists():
        used["resident memory"] = int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return used


def _tensors() -> int:
    """Each storage once, however many tensors share it."""
    found = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found if _stored(each)}
    return sum(storages.values())


def _stored(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta

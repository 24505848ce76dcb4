"""Memory that a backend needs, held against what the device has, before anything is loaded."""

from pathlib import Path
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError
from megatalker.interfaces import CodecBackend, LoadContext, MemoryNeed, TalkerBackend

_CGROUP = Path("/sys/fs/cgroup")


def memory_need(
    spec: TalkerBackend[Any] | CodecBackend[Any], checkpoint: Checkpoint, context: LoadContext[Any]
) -> MemoryNeed | None:
    """Return what a backend would take, or ``None`` where it does not say."""
    return spec.memory(checkpoint, context)


def available_bytes(device: torch.device) -> int | None:
    """Bytes that a program can still take there: of the GPU's memory, or of the host's, also where a container has
    less. ``None``: this system does not tell.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        host = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    return min(host, _container_bytes() or host)


def _container_bytes() -> int | None:
    """Bytes that the limit of this container leaves; files in memory give way, so they do not count."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        files = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return None if limit == "max" else max(0, int(limit) - int(used) + int(files.get("file", 0)))
    except (OSError, ValueError):
        return None


def require_room(
    kind: str, spec: TalkerBackend[Any] | CodecBackend[Any], checkpoint: Checkpoint, context: LoadContext[Any]
) -> None:
    """Refuse to load what cannot fit, rather than to run out of memory half-way.

    Raises:
        CapacityError: the backend needs more than the device has; the message says how many bytes are missing.
    """
    need = memory_need(spec, checkpoint, context)
    room = None if need is None else available_bytes(context.device)
    if need is None or room is None or need.load_bytes <= room:
        return
    where = "GPU" if context.device.type == "cuda" else "machine"
    raise CapacityError(
        f"{kind} {spec.name!r} takes {need.load_bytes:,} bytes for {checkpoint.name!r}, this {where} has {room:,} "
        f"left: {need.load_bytes - room:,} bytes are missing; free memory, lower max_streams, or take another weight "
        "type or device (`megatalker inspect` compares them)"
    )

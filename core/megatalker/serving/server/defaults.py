"""Defaults of a server: settings, engines and front ends where the settings say nothing."""

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from megatalker.settings import Settings

MAX_UNTAKEN_S = 20.0
"""The default of a server: slow clients should cost no memory."""
MAX_WAIT_S = 30.0
"""The default of a server: nobody listens to a silence of this length."""
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client learns, when it is imported, where several processes count together."""
CORES_PER_FRONT_END, FRONT_ENDS_PER_ENGINE = 4, 4


def served_settings(settings: Settings) -> Settings:
    """Return the settings with a server's own defaults where nothing was set."""
    unsaid: dict[str, object] = {"max_untaken_s": MAX_UNTAKEN_S, "max_wait_s": MAX_WAIT_S, "warmup": "first"}
    unsaid = {name: value for name, value in unsaid.items() if getattr(settings, name) is None}
    return settings.model_copy(update=unsaid)


def engine_devices(settings: Settings) -> list[str]:
    """Return the devices of a server's engines: ``server.devices``, or all GPUs where both settings are ``auto``."""
    asked = settings.server.devices
    if asked != "auto":
        return list(asked)
    if settings.device in ("auto", "cuda") and _has_gpu_driver():
        import torch  # which takes seconds, but counts GPUs as the engines see them

        if torch.cuda.is_available():
            return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [settings.device]


def front_end_count(settings: Settings, devices: Sequence[str]) -> int:
    """Return how many processes take connections: ``server.front_ends``, or by default one, and beside GPUs one for
    four cores, but no more than four a GPU.
    """
    asked = settings.server.front_ends
    if asked != "auto":
        return asked
    gpus = sum(device.startswith("cuda") for device in devices)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores // CORES_PER_FRONT_END, FRONT_ENDS_PER_ENGINE * gpus))


def _has_gpu_driver() -> bool:
    if Path("/dev/kfd").exists():  # AMD's
        return True
    with suppress(OSError):
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        return True
    return False

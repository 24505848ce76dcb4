"""Choice of the device, the number format and the number of processor threads of a run."""

from typing import Literal

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import SettingsError

DEVICES = "auto, cpu, cuda, cuda:N or mps"
NO_APPLE_GPU = "this torch sees no Apple GPU; use a Mac with Apple silicon and macOS 14 or newer, or the cpu device"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the type's name in the settings, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def resolve_device(name: str) -> torch.device:
    """Turn the setting ``device`` into a device that exists.

    Args:
        name: ``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``. Apple's GPUs
            are used by name only: nobody has measured yet where they are faster than the CPU of the same machine.

    Raises:
        SettingsError: another name, or no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"device is {name!r}, expected {DEVICES}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "mps" and not device.index:
        if not torch.backends.mps.is_available():
            raise SettingsError(f"device is {name!r}, but {NO_APPLE_GPU}")
        return torch.device("mps", 0)
    if device.type != "cuda":
        raise SettingsError(f"device is {name!r}, expected {DEVICES}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise SettingsError(f"device is {name!r}, but this machine has {count} usable CUDA devices; use cpu or auto")
    return torch.device("cuda", device.index or 0)


def why_no_device(device: torch.device) -> str | None:
    """Say why this torch cannot use ``device``, for a backend's probe; ``None``: it can."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "this torch sees no CUDA device; install a CUDA build of torch, or use the cpu device"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return NO_APPLE_GPU
    return None


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn the setting ``dtype`` into a torch type; ``auto`` is bfloat16 on CUDA and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return DTYPES[name]


SMALL_HIDDEN_SIZE = 512
"""Up to this width of the talker, sharing an operation between threads takes longer than the operation."""


def resolve_threads(setting: int | Literal["auto"], checkpoint: Checkpoint, device: torch.device) -> int:
    """Turn the setting ``threads`` into a number; ``auto`` is one thread for small checkpoints and on GPUs."""
    if setting != "auto":
        return setting
    small = device.type == "cuda" or checkpoint.config.talker.hidden_size <= SMALL_HIDDEN_SIZE
    return 1 if small else torch.get_num_threads()

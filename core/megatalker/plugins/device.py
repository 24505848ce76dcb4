"""Which device and number format a run uses."""

import torch

from megatalker.errors import SettingsError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_name(dtype: torch.dtype) -> str:
    """As in the settings: ``float32``."""
    return str(dtype).removeprefix("torch.")


def resolve_device(name: str) -> torch.device:
    """Turn the setting ``device`` into a device that exists.

    Args:
        name: ``auto`` (CUDA where there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        SettingsError: another name, or no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"device is {name!r}, expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise SettingsError(f"device is {name!r}, expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise SettingsError(f"device is {name!r}, but this machine has {count} usable CUDA devices; use cpu or auto")
    return torch.device("cuda", device.index or 0)


def why_no_cuda(device: torch.device) -> str | None:
    """What a backend's probe says where ``device`` is CUDA and this torch cannot use it; ``None``: nothing is amiss."""
    if device.type != "cuda" or torch.cuda.is_available():
        return None
    return "this torch sees no CUDA device; install a CUDA build of torch, or use the cpu device"


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn the setting ``dtype`` into a torch type; ``auto`` is float32 on a CPU and bfloat16 on CUDA."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]

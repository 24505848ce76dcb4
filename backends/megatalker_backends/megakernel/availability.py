"""Whether the kernel, or its specification, can run a checkpoint on a device."""

import torch

from megatalker.checkpoint.config import ModelConfig
from megatalker.plugins.device import why_no_device
from megatalker_backends.megakernel.settings import MegakernelSettings
from megatalker_backends.megakernel.sizes import choose_shape
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.nvrtc import why_not_compile


def why_not(config: ModelConfig, device: torch.device, settings: MegakernelSettings) -> str | None:
    """What is in the way and what would help, or ``None``."""
    if not settings.interpret:
        if device.type != "cuda":
            return "needs a CUDA GPU; on a CPU set backends.megakernel.interpret = true"
        missing = why_no_device(device) or why_not_compile()
        if missing is not None:
            return missing
    try:
        choose_shape(config, settings, device)
    except ShapeError as error:
        return str(error)
    return None

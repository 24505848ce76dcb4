"""How the compiled talker backend describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import AVAILABLE, Availability, BackendSettings, TalkerBackend
from megatalker_backends.compiled import decoder, settings


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    if device.type == "cuda" and not torch.cuda.is_available():
        return Availability("this torch sees no CUDA device; install a CUDA build of torch, or use the cpu device")
    return AVAILABLE


TALKER = TalkerBackend(
    name="compiled",
    summary="lean torch: several streams in one step, torch.compile, CUDA graphs",
    api_version=2,
    capabilities=decoder.CAPABILITIES,
    probe=_probe,
    rank=10,
    settings=settings.CompiledSettings,
    load=decoder.CompiledDecoder,
)

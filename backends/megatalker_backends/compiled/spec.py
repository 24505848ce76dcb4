"""How the compiled talker backend describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Availability, BackendSettings, TalkerBackend
from megatalker.plugins.device import why_no_device
from megatalker_backends.compiled import decoder, memory, settings


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    return Availability(why_no_device(device))


TALKER = TalkerBackend(
    name="compiled",
    summary="lean torch: several streams in one step, torch.compile, CUDA graphs",
    api_version=2,
    capabilities=decoder.CAPABILITIES,
    probe=_probe,
    rank=10,
    settings=settings.CompiledSettings,
    load=decoder.CompiledDecoder,
    memory=memory.memory_need,
)

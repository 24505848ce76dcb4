"""How the megakernel backend describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Availability, TalkerBackend
from megatalker_backends.megakernel import decoder, memory, settings


def _probe(checkpoint: Checkpoint, device: torch.device, own: settings.MegakernelSettings) -> Availability:
    return Availability(settings.why_not(checkpoint.config, device, own))


TALKER = TalkerBackend(
    name="megakernel",
    summary="a whole frame in one CUDA kernel, for one stream or hundreds",
    api_version=2,
    capabilities=decoder.CAPABILITIES,
    probe=_probe,
    rank=20,
    settings=settings.MegakernelSettings,
    load=decoder.MegakernelDecoder,
    memory=memory.memory_need,
)

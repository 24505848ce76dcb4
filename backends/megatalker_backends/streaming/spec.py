"""How the streaming codec describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Availability, BackendSettings, CodecBackend
from megatalker.plugins.device import why_no_device
from megatalker_backends.streaming.codec import CAPABILITIES, StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    return Availability(why_no_device(device))


CODEC = CodecBackend(
    name="streaming",
    summary="exact incremental decoder: the cost of a chunk depends on its length alone",
    api_version=2,
    rank=10,
    capabilities=CAPABILITIES,
    probe=_probe,
    settings=StreamingSettings,
    load=StreamingCodec,
)

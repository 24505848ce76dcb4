"""How the streaming codec describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import AVAILABLE, Availability, BackendSettings, CodecBackend
from megatalker_backends.streaming.codec import CAPABILITIES, StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    if device.type == "cuda" and not torch.cuda.is_available():
        return Availability("this torch sees no CUDA device; install a CUDA build of torch, or use the cpu device")
    return AVAILABLE


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

"""How the streaming codec describes itself to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Availability, BackendSettings, CodecBackend, LoadContext, MemoryNeed
from megatalker.plugins.device import why_no_device
from megatalker_backends.streaming.codec import CAPABILITIES, StreamingCodec
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    return Availability(why_no_device(device))


def _memory_need(checkpoint: Checkpoint, context: LoadContext[StreamingSettings]) -> MemoryNeed:
    """Weights in float32 and the memory of a stream, which does not grow with its speech."""
    decoder = StreamingDecoder(
        checkpoint.codec_config, Weights(lambda name: checkpoint.codec_tensor(name).to("meta"), "decoder")
    )
    kept = [*decoder.parameters(), *decoder.buffers()]
    stream = 4 * decoder.layout.size
    batch = 2 * min(context.settings.max_batch, context.max_streams) * stream
    return MemoryNeed(sum(one.numel() * one.element_size() for one in kept) + batch, stream, "float32")


CODEC = CodecBackend(
    name="streaming",
    summary="exact incremental decoder: the cost of a chunk depends on its length alone",
    api_version=2,
    rank=10,
    capabilities=CAPABILITIES,
    probe=_probe,
    settings=StreamingSettings,
    load=StreamingCodec,
    memory=_memory_need,
)

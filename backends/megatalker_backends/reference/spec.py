"""How the reference backends describe themselves to the registry."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import why_no_official
from megatalker.interfaces import Availability, BackendSettings, CodecBackend, TalkerBackend
from megatalker.plugins.device import why_no_device
from megatalker_backends.reference import codec, decoder


def _probe(_checkpoint: Checkpoint, device: torch.device, _own: BackendSettings) -> Availability:
    return Availability(why_no_official() or why_no_device(device))


TALKER = TalkerBackend(
    name="reference",
    summary="the official modules, one stream and one frame at a time",
    api_version=2,
    capabilities=decoder.CAPABILITIES,
    probe=_probe,
    settings=decoder.ReferenceSettings,
    load=decoder.ReferenceDecoder,
)

CODEC = CodecBackend(
    name="reference",
    summary="the official decoder, run in full over all codes for every chunk",
    api_version=2,
    capabilities=codec.CAPABILITIES,
    probe=_probe,
    load=codec.ReferenceCodec,
)

"""Memory that the megakernel takes, by the layouts of the kernels themselves."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import MINUTE_ROWS, LoadContext, MemoryNeed
from megatalker_backends.megakernel.settings import (
    FIRST_PAGE_BYTES,
    MegakernelSettings,
    choose_page_limit,
    choose_shape,
    choose_streams,
    page_bytes,
)
from megatalker_kernels.constants import PAGE
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.model import packed_bytes
from megatalker_kernels.workspace import Workspace


def memory_need(checkpoint: Checkpoint, context: LoadContext[MegakernelSettings]) -> MemoryNeed | None:
    """Packed weights, work space and first pages; a stream takes whole pages. On a device that is not here, sizes are
    those for an H200, which other GPUs are close to.
    """
    settings, device = context.settings, context.device
    if device.type != "cuda" or not torch.cuda.is_available():
        settings = settings.model_copy(update={"interpret": True})
    try:
        shape = choose_shape(checkpoint.config, settings, device)
    except ShapeError:
        return None
    streams = choose_streams(settings, context.max_streams)
    space = Workspace(shape, streams + 1, 1, torch.device("meta")).device_bytes
    page = page_bytes(shape)
    first = min(choose_page_limit(shape, settings, streams), max(1, FIRST_PAGE_BYTES // page)) * page
    return MemoryNeed(packed_bytes(shape) + space + first, -(-MINUTE_ROWS // PAGE) * page, "bfloat16")

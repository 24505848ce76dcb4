"""Sizes of one decoder: what the kernel is compiled for, and how much its streams share."""

from dataclasses import replace

import torch

from megatalker.checkpoint.config import ModelConfig
from megatalker_backends.megakernel.settings import MOST_STREAMS, MegakernelSettings
from megatalker_backends.megakernel.weights import stack_shape
from megatalker_kernels.constants import PAGE, STORED
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.module import capability, processors
from megatalker_kernels.shapes import KernelShape

DEFAULT_POSITIONS = 4096
FIRST_PAGE_BYTES = 2**28
"""What pages take before streams need more, at least."""
FIRST_PAGES_A_STREAM = 2
"""As above, on a GPU: for a prompt and a sentence. All streams wait when there must be more."""
MOST_FIRST_MEMORY = 0.25
"""As above, of the memory that is free."""
INTERPRETED_GPU = (132, 90)
"""Multiprocessors and compute capability that the specification is laid out for: an H200."""


def choose_positions(config: ModelConfig, settings: MegakernelSettings) -> int:
    """Prompt rows plus frames of one stream."""
    return min(settings.max_positions or DEFAULT_POSITIONS, config.talker.max_positions)


def choose_shape(config: ModelConfig, settings: MegakernelSettings, device: torch.device) -> KernelShape:
    """What the kernel is compiled for.

    Raises:
        ShapeError: the checkpoint, the device or the settings break one of the kernel's rules; the message names it.
    """
    present, level = INTERPRETED_GPU if settings.interpret else (processors(device), capability(device))
    blocks = settings.blocks or present
    if blocks > present:
        raise ShapeError(f"blocks is {blocks}, but this GPU runs {present} at once; lower the backend's blocks")
    shape = KernelShape.fit(
        stack_shape(config.talker),
        stack_shape(config.predictor),
        code_groups=config.num_code_groups,
        max_positions=choose_positions(config, settings),
        processors=blocks,
        capability=level,
        in_flight=settings.in_flight,
    )
    stages = settings.stages or shape.stages
    if stages > shape.stages:
        raise ShapeError(f"stages is {stages}, but {shape.stages} fit on sm_{level}; lower the backend's stages")
    return replace(shape, stages=stages)


def choose_streams(settings: MegakernelSettings, wanted: int) -> int:
    """Streams held at the same time, for an engine that runs ``wanted``."""
    return settings.max_streams or min(wanted, MOST_STREAMS)


def choose_page_limit(shape: KernelShape, settings: MegakernelSettings, streams: int) -> int:
    """Pages that the streams share, at most."""
    return settings.pages or streams * shape.max_pages


def choose_first_pages(shape: KernelShape, limit: int, streams: int, device: torch.device) -> int:
    """Pages that so many streams share before they need more."""
    talker = shape.talker
    page_bytes = talker.layers * 2 * talker.kv_heads * PAGE * talker.head_dim * STORED.itemsize
    first_bytes = FIRST_PAGE_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        first_bytes = max(first_bytes, int(min(FIRST_PAGES_A_STREAM * streams * page_bytes, MOST_FIRST_MEMORY * free)))
    return min(limit, max(1, first_bytes // page_bytes))

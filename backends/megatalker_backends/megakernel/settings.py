"""Settings of the ``megakernel`` talker backend, and the sizes that follow from them for a checkpoint on a device."""

from dataclasses import replace
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator

from megatalker.checkpoint.config import ModelConfig
from megatalker.interfaces import BackendSettings
from megatalker.plugins.device import why_no_device
from megatalker.settings import Integer, Seconds
from megatalker_backends.megakernel.weights import stack_shape
from megatalker_kernels.constants import PAGE, STORED
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.module import capability, processors
from megatalker_kernels.nvrtc import why_not_compile
from megatalker_kernels.shapes import KernelShape

MOST_STREAMS = 2048
DEFAULT_POSITIONS = 4096
FIRST_PAGE_BYTES = 2**28
"""Memory that pages take at load, at least."""
FIRST_PAGES_A_STREAM = 2
"""Pages of each stream at load on a GPU, for a prompt and a sentence: all streams wait while their number doubles."""
MOST_FIRST_MEMORY = 0.25
"""Share of a GPU's free memory that pages take at load, at most."""
INTERPRETED_GPU = (132, 90)
"""Multiprocessors and compute capability of the GPU that the specification is laid out for: an H200."""


class MegakernelSettings(BackendSettings):
    """The ``[backends.megakernel]`` table."""

    max_streams: Annotated[Integer, Field(ge=1, le=MOST_STREAMS)] | None = None
    """Streams held at the same time, and the largest batch. ``None``: the engine's ``max_streams``, 2048 at most."""
    wide_from: Annotated[Integer, Field(ge=1)] = 9
    """Streams of a call from which on launches of the wide kernel, of up to 512 streams, replace launches of the
    megakernel, of 8. A stream has the same codes in either."""
    max_positions: Annotated[Integer, Field(ge=2)] | None = None
    """Prompt rows plus frames of one stream, at most the checkpoint's own limit. ``None``: 4096. The kernel is compiled
    for this number, rounded up to 64."""
    pages: Annotated[Integer, Field(ge=1)] | None = None
    """Pages of keys and values, 64 positions each, that all streams share, at most. Loading takes what 256 MiB hold;
    when streams need more, their number doubles. ``None``: enough for all streams at full length."""
    prefix_rows: Annotated[Integer, Field(ge=0)] = 512
    """Prompt rows whose keys and values are remembered, for prompts of 48 rows or more that begin alike. 0 turns that
    off."""
    interpret: bool = False
    """Run the kernel's executable specification in torch instead of the kernel: for tests, on any device, slow."""
    stall_timeout_s: Annotated[Seconds, Field(le=10)] = 0.05
    """How long a wait inside the kernel may take before the launch is abandoned and the backend declared faulty."""
    blocks: Annotated[Integer, Field(ge=1)] | None = None
    """Blocks of the kernel. ``None``: one on each multiprocessor, which is also the most."""
    stages: Annotated[Integer, Field(ge=2)] | None = None
    """Depth of the ring in shared memory, 16 or 32 KiB each. ``None``: as many as fit, which is the most."""
    in_flight: Annotated[Integer, Field(ge=1)] = 1
    """Copies into the ring of a block that are requested and have not landed, fewer than ``stages``."""

    @model_validator(mode="after")
    def _ring_is_deeper_than_its_requests(self) -> Self:
        if self.stages is not None and self.stages <= self.in_flight:
            raise ValueError(f"stages is {self.stages}, expected more than in_flight, which is {self.in_flight}")
        return self


def why_not(config: ModelConfig, device: torch.device, settings: MegakernelSettings) -> str | None:
    """Return why the kernel, or its specification, cannot run the checkpoint here, and a remedy, or ``None``."""
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


def choose_positions(config: ModelConfig, settings: MegakernelSettings) -> int:
    """Prompt rows plus frames of one stream."""
    return min(settings.max_positions or DEFAULT_POSITIONS, config.talker.max_positions)


def choose_shape(config: ModelConfig, settings: MegakernelSettings, device: torch.device) -> KernelShape:
    """Choose the sizes that the kernel is compiled for.

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


def page_bytes(shape: KernelShape) -> int:
    """Bytes of a page of keys and values, of all layers."""
    talker = shape.talker
    return talker.layers * 2 * talker.kv_heads * PAGE * talker.head_dim * STORED.itemsize


def choose_first_pages(shape: KernelShape, limit: int, streams: int, device: torch.device) -> int:
    """Pages that ``streams`` share at load, before they need more."""
    page, first_bytes = page_bytes(shape), FIRST_PAGE_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        first_bytes = max(first_bytes, int(min(FIRST_PAGES_A_STREAM * streams * page, MOST_FIRST_MEMORY * free)))
    return min(limit, max(1, first_bytes // page))

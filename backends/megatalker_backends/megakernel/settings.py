"""Settings of the ``megakernel`` talker backend."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from megatalker.interfaces import BackendSettings
from megatalker.settings import Integer, Seconds

MOST_STREAMS = 2048


class MegakernelSettings(BackendSettings):
    """The ``[backends.megakernel]`` table."""

    max_streams: Annotated[Integer, Field(ge=1, le=MOST_STREAMS)] | None = None
    """Streams held at the same time, and the largest batch. ``None``: the engine's ``max_streams``, 2048 at most."""
    wide_from: Annotated[Integer, Field(ge=1)] = 9
    """Streams of a call from which on launches of the kernel of many rows, of up to 512, take the place of those of the
    megakernel, of 8. A stream says the same in either."""
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

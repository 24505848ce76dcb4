"""Settings of the ``compiled`` talker backend."""

from typing import Annotated, Literal

from pydantic import Field

from megatalker.interfaces import BackendSettings
from megatalker.settings import Integer

MOST_STREAMS = 256
Weights = Literal["bfloat16", "int8", "int4"]


class CompiledSettings(BackendSettings):
    """The ``[backends.compiled]`` table."""

    max_streams: Annotated[Integer, Field(ge=1, le=MOST_STREAMS)] | None = None
    """Streams held at the same time, and the largest batch. Memory for all of them is taken at load. ``None``: the
    engine's ``max_streams``, 256 at most."""
    max_positions: Annotated[Integer, Field(ge=2)] | None = None
    """Prompt rows plus frames of one stream, at most the checkpoint's own limit. ``None``: 4096, fewer where keys and
    values of all streams would take more than half of the free memory of the GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether warm-up compiles the decoding step. ``auto``: yes where that works, else the log says once what is in the
    way; ``on``: an error then. Without a warm-up nothing is compiled: steps run as plain torch operations."""
    weights: Weights | Literal["auto"] | None = None
    """On a processor, the number format of the layers' matrices. ``int8`` and ``int4`` run uncompiled by ONNX Runtime,
    one stream after another; they need the extra ``quantised``, and speech differs from that of float32.
    ``auto`` takes the first of ``dtype``, ``int8`` and ``int4`` that can speak in real time here, by a measurement at
    each start. ``None``: as ``dtype`` says."""

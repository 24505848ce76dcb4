"""The streaming codec's own settings."""

from typing import Annotated, Literal

from pydantic import Field

from megatalker.interfaces import BackendSettings
from megatalker.settings import Integer

Limit = Annotated[Integer, Field(ge=1, le=64)]


class StreamingSettings(BackendSettings):
    """The ``[codecs.streaming]`` table."""

    max_batch: Limit = 64
    """On CUDA, streams decoded in one step; a larger call is done in several."""
    max_frames: Limit = 8
    """On CUDA, frames of each stream decoded in one step; a longer call is done in several. Kernels do at most 8."""
    kernels: Literal["auto", "on", "off"] = "auto"
    """On CUDA, decode by kernels made for it instead of torch operations. ``auto``: yes, unless they cannot run here;
    then the log says why."""
    precision: Literal["exact", "fast"] = "exact"
    """With kernels, how products are made: ``exact`` within 1e-4 of the official decoder; ``fast`` rounds what is
    multiplied to float16, nearly twice as fast, and says in the log how far its samples are off."""
    cuda_graphs: bool = True
    """On CUDA, replay captured steps; sizes between the captured ones are padded (streams) or split (frames)."""
    compile: bool = False
    """On a CPU, run the decoder through ``torch.compile``: about 30 % faster, over a minute at start; an error
    where that cannot work."""

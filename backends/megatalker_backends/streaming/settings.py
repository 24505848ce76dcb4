"""The streaming codec's own settings."""

from typing import Annotated

from pydantic import Field

from megatalker.interfaces import BackendSettings

Limit = Annotated[int, Field(ge=1, le=64)]


class StreamingSettings(BackendSettings):
    """The ``[codecs.streaming]`` table."""

    max_batch: Limit = 8
    """Streams decoded in one step; a larger call is done in several."""
    max_frames: Limit = 8
    """Frames decoded in one step (with CUDA graphs, of each stream); a longer call is done in several."""
    cuda_graphs: bool = True
    """On CUDA, replay captured steps; sizes between the captured ones are padded (streams) or split (frames)."""
    compile: bool = False
    """Run the decoder through ``torch.compile``. On a CPU: about 30 % faster, over a minute at start."""
    tf32: bool = False
    """On CUDA, let matrix products round to TensorFloat-32. Faster, but no longer exact within 1e-4."""

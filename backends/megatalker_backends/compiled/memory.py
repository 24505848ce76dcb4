"""How many positions a stream may have."""

import torch

from megatalker.checkpoint.config import TransformerShape
from megatalker.errors import CapacityError
from megatalker_backends.compiled.settings import CompiledSettings

DEFAULT_POSITIONS = 4096
FEWEST_POSITIONS = 256


def choose_positions(
    shape: TransformerShape, settings: CompiledSettings, streams: int, device: torch.device, dtype: torch.dtype
) -> int:
    """Resolve ``max_positions``; memory of the host is not asked, for it is taken only when it is written.

    Raises:
        CapacityError: on a GPU, keys and values of ``streams`` would take more than half of the free memory
            (with ``max_positions`` set), or even 256 positions each would.
    """
    wanted = min(settings.max_positions or DEFAULT_POSITIONS, shape.max_positions)
    if device.type != "cuda":
        return wanted
    position = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize * (streams + 1)
    fitting = torch.cuda.mem_get_info(device)[0] // 2 // position
    if fitting >= wanted:
        return wanted
    if settings.max_positions is not None or fitting < FEWEST_POSITIONS:
        raise CapacityError(
            f"{streams} streams of {wanted} positions take {wanted * position / 2**30:.1f} GiB for keys "
            f"and values, and half of this GPU's free memory holds {fitting} positions each; "
            "lower the backend's max_streams or max_positions"
        )
    return fitting

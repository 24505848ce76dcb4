"""How many positions a stream may have, and the memory that a model takes."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig, TransformerShape
from megatalker.errors import CapacityError
from megatalker.interfaces import MINUTE_ROWS, LoadContext, MemoryNeed
from megatalker.plugins.device import dtype_name
from megatalker_backends.compiled.quantised.groups import EXACT_LAYERS, GROUPS
from megatalker_backends.compiled.rounding import BITS, layer_weights
from megatalker_backends.compiled.settings import CompiledSettings

DEFAULT_POSITIONS = 4096
FEWEST_POSITIONS = 256


def choose_positions(
    shape: TransformerShape, settings: CompiledSettings, streams: int, device: torch.device, dtype: torch.dtype
) -> int:
    """Resolve ``max_positions``; memory of the host is not asked, for it is taken only when it is
    written (:func:`~megatalker_backends.compiled.stack.empty_cache`).

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


def memory_need(checkpoint: Checkpoint, context: LoadContext[CompiledSettings]) -> MemoryNeed:
    """Weights as :func:`~megatalker_backends.compiled.weights.load_weights` packs them, and keys and values.

    ``weights = "auto"`` counts as what ``dtype`` says, which takes the most.
    """
    config, settings = checkpoint.config, context.settings
    streams = settings.max_streams or context.max_streams
    bits = BITS.get(settings.weights)
    format_ = settings.weights if settings.weights not in (None, "auto") else dtype_name(context.dtype)
    item = 2 if settings.weights in ("bfloat16", *BITS) else context.dtype.itemsize
    layers = layer_weights(config.talker) + layer_weights(config.predictor)
    matrices = layers * item if bits is None else _rounded_bytes(config, bits)
    kept = 4 if bits is not None else item
    pairs = 2 * config.talker.num_layers * config.talker.num_kv_heads * config.talker.head_dim * kept
    pending = (streams + 1) * (config.talker.vocab_size + config.talker.hidden_size) * 4
    load = matrices + _table_weights(config) * item + pending
    return MemoryNeed(load, pairs * min(MINUTE_ROWS, config.talker.max_positions), str(format_))


def _table_weights(config: ModelConfig) -> int:
    """Count the weights of heads and embeddings, which stay in 16 bits at least."""
    talker, predictor, others = config.talker, config.predictor, config.num_code_groups - 1
    rows = talker.vocab_size + others * predictor.vocab_size
    heads = talker.vocab_size * talker.hidden_size + others * predictor.vocab_size * predictor.hidden_size
    projected = (rows + talker.hidden_size) * predictor.hidden_size if config.projects_predictor else 0
    return rows * talker.hidden_size + heads + projected


def _rounded_bytes(config: ModelConfig, bits: int) -> int:
    """Bytes of the layers in groups with a float32 scale each; the first layer of a stack has 8 bits."""
    total = 0
    for shape in (config.talker, config.predictor):
        layer = layer_weights(shape) // shape.num_layers
        each = {width: layer * width // 8 + layer // GROUPS[width] * 4 for width in (bits, 8)}
        total += EXACT_LAYERS * each[8] + (shape.num_layers - EXACT_LAYERS) * each[bits]
    return total

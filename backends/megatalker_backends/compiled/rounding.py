"""The number format of the layers' matrices on a processor: what was asked for, or what speaks in real time here."""

import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig, TransformerShape
from megatalker.engine.openmp import ROUNDS, WAITS, says_how_threads_wait
from megatalker.errors import SettingsError
from megatalker.plugins.device import dtype_name
from megatalker_backends.compiled.settings import Weights

if TYPE_CHECKING:
    from megatalker_backends.compiled.quantised.runner import QuantisedModel

logger = logging.getLogger(__name__)

BITS: Mapping[str | None, int] = {"int8": 8, "int4": 4}
"""Bits of the formats that ONNX Runtime runs."""
PACKAGES = ("onnx", "onnxruntime")
BUDGET_S = 0.05
"""Seconds of a frame of 80 ms for the products of the layers; the others are the codec's and the sampler's."""
PROBE_SHAPE = 4096, 1024
PROBE_MATRICES = 12
"""Matrices that are multiplied one after another: together larger than most caches in any format."""
PROBE_ROUNDS = 3
EXACT_BYTES = 2**25
"""Layers that are smaller than this in float32 are never rounded: they stay in the processor's cache."""


def resolve_weights(
    setting: Weights | Literal["auto"] | None, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Weights | None:
    """Turn the setting ``weights`` into a format; ``None``: the type that was asked for.

    Raises:
        SettingsError: there is a format, and the device is no processor or a package is missing.
    """
    if setting is None:
        return None
    if device.type != "cpu":
        if setting == "auto":
            return None
        raise SettingsError(
            f"backends.compiled.weights is {setting!r}, which is for processors, and the device is {device.type}; "
            "leave it out, or set device to 'cpu'"
        )
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if setting in BITS and missing:
        raise SettingsError(
            f"backends.compiled.weights is {setting!r}, which needs {' and '.join(missing)}; "
            "pip install 'megatalker[quantised]', or set it to 'bfloat16'"
        )
    return setting if setting != "auto" else _choose_here(checkpoint.config, dtype, able=not missing)


def load_quantised(
    checkpoint: Checkpoint, weights: str | None, max_streams: int, max_positions: int
) -> "QuantisedModel":
    """Load the model with rounded layers; the packages that it needs are imported here and nowhere else."""
    from megatalker_backends.compiled.quantised.runner import QuantisedModel

    assert weights is not None
    if sys.platform == "linux" and torch.get_num_threads() > 1 and not says_how_threads_wait():
        logger.warning("compiled: slowed by idle threads of torch; set %s=%s before Python starts", WAITS[0], ROUNDS)
    return QuantisedModel(checkpoint, weights, max_streams=max_streams, max_positions=max_positions)


def weights_per_frame(config: ModelConfig) -> int:
    """Count the weights of layers that a frame reads: the predictor's once for each code after code 0."""
    return layer_weights(config.talker) + (config.num_code_groups - 1) * layer_weights(config.predictor)


def choose_weights(count: int, seconds: Mapping[str, float]) -> str:
    """Choose the first format with which a frame is in time, or the last one.

    Args:
        count: weights that a frame reads.
        seconds: for each weight, by format, the most exact first.
    """
    return next((name for name, each in seconds.items() if count * each <= BUDGET_S), list(seconds)[-1])


def _choose_here(config: ModelConfig, dtype: torch.dtype, *, able: bool) -> Weights | None:
    count, own = weights_per_frame(config), dtype_name(dtype)
    if max(layer_weights(config.talker), layer_weights(config.predictor)) * 4 <= EXACT_BYTES:
        logger.info("compiled: weights stay %s; the layers fit into the processor's cache", own)
        return None
    seconds = {own: _seconds_per_weight(_torch_products(dtype))}
    if dtype != torch.bfloat16:
        seconds["bfloat16"] = _seconds_per_weight(_torch_products(torch.bfloat16))
    if able:
        from megatalker_backends.compiled.quantised.probe import packed_products

        seconds |= {name: _seconds_per_weight(packed_products(BITS[name])) for name in ("int8", "int4")}
    chosen = choose_weights(count, seconds)
    found = ", ".join(f"{name} {1000 * count * each:.0f} ms" for name, each in seconds.items())
    hint = "" if able else "; int8 and int4 need pip install 'megatalker[quantised]'"
    logger.info("compiled: weights are %s; products of a frame (80 ms) here: %s%s", chosen, found, hint)
    return None if chosen == own else chosen  # type: ignore[return-value]  # a key of seconds


def layer_weights(shape: TransformerShape) -> int:
    """Count the weights of the matrices of a stack's layers."""
    queries, pairs = shape.num_heads * shape.head_dim, 2 * shape.num_kv_heads * shape.head_dim
    layer = shape.hidden_size * (2 * queries + pairs + 3 * shape.intermediate_size)
    return shape.num_layers * layer


def _torch_products(dtype: torch.dtype) -> Callable[[], object]:
    matrices = [torch.zeros(PROBE_SHAPE, dtype=dtype) for _ in range(PROBE_MATRICES)]
    x = torch.zeros(1, PROBE_SHAPE[1], dtype=dtype)
    return lambda: [F.linear(x, matrix) for matrix in matrices]


def _seconds_per_weight(products: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(1 + PROBE_ROUNDS):
        began = time.perf_counter()
        products()
        best = min(best, time.perf_counter() - began)
    return best / (PROBE_MATRICES * PROBE_SHAPE[0] * PROBE_SHAPE[1])

"""A transformer stack over static rows of keys and values: one position for each of several rows, or a whole prompt."""

import mmap
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker.checkpoint.config import TransformerShape
from megatalker_backends.compiled.ops import attend, linear, rms_norm, rotate
from megatalker_backends.compiled.weights import LayerWeights, StackWeights


class LayerCache(NamedTuple):
    """Keys and values of one layer, each ``[rows, kv_heads, positions, head_dim]`` in the type of the weights."""

    keys: Tensor
    values: Tensor


class Step(NamedTuple):
    """Positions of the elements of a batch: everything of a step except its input."""

    rows: Tensor
    """``[B]`` int64: the cache row of each element."""
    positions: Tensor
    """``[B]`` int64: the position this step writes; all before it are visible to it."""
    span: Tensor
    """``[n]`` int64, 0 to n - 1, above every position: the part of the cache that is looked at."""
    cos: Tensor
    """``[B, head_dim]``"""
    sin: Tensor
    """``[B, head_dim]``"""


def empty_cache(
    shape: TransformerShape, rows: int, positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[LayerCache, ...]:
    """Caches for every layer of a stack."""
    size = (rows, shape.num_kv_heads, positions, shape.head_dim)
    return tuple(LayerCache(_zeros(size, device, dtype), _zeros(size, device, dtype)) for _ in range(shape.num_layers))


def _zeros(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, of which a processor's memory holds only the pages that have been written: torch's own are all written at
    once, and those of eight streams of 0.6B take 8 GB in float32. numpy's come in pages of 2 MB, of which a prompt of
    twelve rows takes all that its row has: the first stream of a row began 70 ms later on ``demo``.
    """
    if device.type != "cpu":
        return torch.zeros(size, device=device, dtype=dtype)
    memory = mmap.mmap(-1, prod(size) * dtype.itemsize)
    if hasattr(memory, "madvise") and hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)


def step_layers(
    shape: TransformerShape, layers: Sequence[LayerWeights], caches: Sequence[LayerCache], x: Tensor, step: Step
) -> Tensor:
    """One position for each row through consecutive layers: ``[B, hidden]`` float32 to the same; writes the caches."""
    rows, positions, span, cos, sin = step
    visible = span <= positions.unsqueeze(1)
    for weights, cache in zip(layers, caches, strict=True):
        query, key, value = _heads(shape, weights, linear(_normed(shape, x, weights.input_norm), weights.qkv))
        query, key = (rotate(part, cos.unsqueeze(1), sin.unsqueeze(1)) for part in (query, key))
        cache.keys[rows, :, positions] = key.to(cache.keys.dtype)
        cache.values[rows, :, positions] = value.to(cache.values.dtype)
        grouped = query.view(len(query), shape.num_kv_heads, -1, shape.head_dim)
        length = span.shape[0]
        seen = attend(grouped, cache.keys[rows, :, :length], cache.values[rows, :, :length], visible)
        x = x + linear(seen.flatten(1), weights.output)
        x = x + _mlp(shape, weights, x)
    return x


def prefill_layers(
    stack: StackWeights, caches: Sequence[LayerCache], x: Tensor, row: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """A prompt from position 0 on.

    Args:
        stack: the layers.
        caches: positions ``[0, T)`` of the row are written.
        x: ``[T, hidden]`` float32.
        row: ``[1]`` int64.
        cos: ``[T, head_dim]``, as ``sin``.
        sin: see ``cos``.

    Returns:
        ``[T, hidden]`` float32, before the last norm. Rows depend on those before them only, so a prompt may be padded
        at its end: what the padding writes is overwritten before any later step sees it.
    """
    shape, length = stack.shape, x.shape[0]
    for weights, cache in zip(stack.layers, caches, strict=True):
        query, key, value = _heads(shape, weights, linear(_normed(shape, x, weights.input_norm), weights.qkv))
        query, key = (rotate(part, cos.unsqueeze(1), sin.unsqueeze(1)) for part in (query, key))
        query, key, value = (part.to(cache.keys.dtype).transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        cache.keys[:, :, :length].index_copy_(0, row, key)
        cache.values[:, :, :length].index_copy_(0, row, value)
        group = shape.num_heads // shape.num_kv_heads
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + linear(seen[0].transpose(0, 1).flatten(1), weights.output)
        x = x + _mlp(shape, weights, x)
    return x


def _normed(shape: TransformerShape, x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, shape.rms_norm_eps)


def _heads(shape: TransformerShape, weights: LayerWeights, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normed queries, normed keys, and values, each ``[B, heads, head_dim]``, from ``[B, all heads * head_dim]``."""
    heads = packed.view(len(packed), -1, shape.head_dim)
    query, key, value = torch.split(heads, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    return _normed(shape, query, weights.query_norm), _normed(shape, key, weights.key_norm), value


def _mlp(shape: TransformerShape, weights: LayerWeights, x: Tensor) -> Tensor:
    gate, up = linear(_normed(shape, x, weights.mlp_norm), weights.gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate) * up, weights.down)

"""The arithmetic of a decoder layer's parts. Between two matrix products all is float32, whatever the weights are."""

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL_MATRIX = 2**20
"""Elements of a matrix that stays in a processor's cache from one row of a batch to the next."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``[B, K] x [N, K] -> [B, N]`` float32; compiled, a sum of products where that is faster than a library."""
    if torch.compiler.is_compiling() and _sums_are_faster(x, weight):
        return (settled(x).unsqueeze(1) * weight.float()).sum(-1)
    return F.linear(x.to(weight.dtype), weight).float()


def _sums_are_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether a product should be part of the surrounding machine code.

    On a CPU library calls cut the step into many pieces, each with its overhead, and a row's sum does not depend on the
    batch size. On a GPU libraries are far from memory bandwidth for one row: 6.2 instead of 4.5 ms a frame at 0.6B.
    """
    if x.device.type == "cpu":
        return weight.numel() <= SMALL_MATRIX
    return len(x) == 1


def settled(x: Tensor) -> Tensor:
    """Return ``x``, and have the compiler compute it before its readers.

    Otherwise a norm or an activation is computed anew inside every sum of products that reads it.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension; ``x`` and ``weight`` are float32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_table(positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[positions, head_dim]``, both halves alike.

    The talker's three rotary sections hold the same position in speech, which makes them plain rotary embedding.
    """
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    angles = torch.arange(positions).float().unsqueeze(1) * (1.0 / theta**steps)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device), angles.sin().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x [..., head_dim]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention of one query position per row.

    Products and sums instead of matrix calls: compiled, the gather of the rows' keys and values is part of the sum and
    nothing is copied.

    Args:
        query: ``[B, kv_heads, group, head_dim]`` float32.
        keys: ``[B, kv_heads, n, head_dim]``.
        values: as ``keys``. What lies outside ``visible`` may be anything, infinity and NaN too.
        visible: ``[B, n]`` bool.

    Returns:
        ``[B, kv_heads, group, head_dim]`` float32.
    """
    scores = (settled(query).unsqueeze(3) * keys.float().unsqueeze(2)).sum(-1) * query.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~visible[:, None, None], -torch.inf), dim=-1)
    seen = values.float().masked_fill(~visible[:, None, :, None], 0.0)
    return (weights.unsqueeze(-1) * seen.unsqueeze(2)).sum(3)

"""The executable specification of ``csrc/attention.cuh``."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker_kernels.constants import CHUNK, OPERAND, PAGE
from megatalker_kernels.shapes import StackShape


def norm_factor(x: Tensor, eps: float) -> Tensor:
    """``1 / rms`` of each row, ``[..., 1]``."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@cache
def swizzled_order(head_dim: int, device: torch.device) -> Tensor:
    """``[PAGE, head_dim]``: which dimension of a key or value lies where in a page; ``csrc/units.cuh`` says why."""
    place = torch.arange(PAGE, device=device)[:, None]
    turned = ((place & 6) ^ (place & 1) << 2) * 8 & (head_dim - 1)
    return torch.arange(head_dim, device=device) ^ turned


def attend(
    s: StackShape,
    *,
    qkv: Tensor,
    pages: Tensor,
    table: Tensor,
    position: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    eps: float,
    partial: Tensor | None,
    out: Tensor,
) -> None:
    """Append each row's key and value to its page, attend over positions ``0 ... position``, and write the result.

    Args:
        s: sizes.
        qkv: float32 ``[R, qkv]``.
        pages: bfloat16 ``[pages, 2, kv heads, PAGE, head_dim]`` of this layer, dimensions in :func:`swizzled_order`.
        table: ``[R, pages]``: pages of each row's stream.
        position: ``[R]``; rows of one stream see those of lower position that stand in the same pass.
        q_norm: ``[head_dim]``.
        k_norm: ``[head_dim]``.
        rope: ``[positions, 2, head_dim / 2]``.
        eps: of the norms.
        partial: ``[ROWS, heads, chunks, head_dim + CHUNK_STATS]``: where rows of several chunks leave each chunk's
            weighted sum, peak and mass (the rest stays unused); ``None`` if no row has more than one.
        out: ``[R, heads * head_dim]``, rounded to bfloat16.
    """
    rows, group = len(qkv), s.heads // s.kv_heads
    heads = qkv.view(rows, s.heads + 2 * s.kv_heads, s.head_dim)
    split = torch.split(heads, [s.heads, s.kv_heads, s.kv_heads], dim=1)
    angles = rope[position][:, :, None]
    query = _rotate(split[0] * norm_factor(split[0], eps) * q_norm, angles) * s.head_dim**-0.5
    key = _rotate(split[1] * norm_factor(split[1], eps) * k_norm, angles)
    page, place = table.gather(1, position[:, None] // PAGE).flatten().long(), position % PAGE
    order = swizzled_order(s.head_dim, pages.device)
    fresh = torch.stack((key, split[2]), dim=1).to(pages.dtype)
    pages[page, :, :, place] = fresh.gather(-1, order[place][:, None, None].expand_as(fresh))

    counts = (position // CHUNK + 1).tolist()
    chunks, pages_of_chunk = max(counts), CHUNK // PAGE
    table = F.pad(table, (0, chunks * pages_of_chunk))[:, : chunks * pages_of_chunk].long()
    keys, values = (_gathered(pages[:, kind], table, order, pages_of_chunk) for kind in range(2))
    query = query.view(rows, 1, s.kv_heads, group, s.head_dim)
    scores = query @ keys.transpose(-1, -2)
    future = torch.arange(chunks * CHUNK, device=position.device).view(chunks, 1, 1, CHUNK) > position.view(
        -1, 1, 1, 1, 1
    )
    scores = scores.masked_fill(future, -torch.inf)
    peak = scores.amax(-1, keepdim=True)
    weight = (scores - peak.clamp(min=torch.finfo(torch.float32).min)).exp()
    mass, total = weight.sum(-1, keepdim=True), weight @ values
    if partial is not None:
        for row, count in enumerate(counts):
            if count > 1:
                pieces = torch.cat((total[row], peak[row], mass[row]), dim=-1)[:count]
                partial[row, :, :count, : s.head_dim + 2] = pieces.flatten(1, 2).transpose(0, 1)
    share = (peak - peak.amax(1, keepdim=True)).exp()
    combined = (total * share).sum(1) / (mass * share).sum(1)
    out[:] = combined.flatten(1).to(OPERAND)


def _gathered(pages: Tensor, table: Tensor, order: Tensor, pages_of_chunk: int) -> Tensor:
    """Keys, or values, of each row's pages in float32: ``[R, chunks, kv heads, CHUNK, head_dim]``.

    They are laid out alike for any number of rows and chunks: else products would be summed in another order.
    """
    eights = order[:, ::8] // 8  # dimensions change places by eights, which are 16 bytes
    stored = pages[table].view(torch.complex128)
    stored = stored.gather(-1, eights.expand_as(stored)).view(pages.dtype)
    in_chunks = stored.view(len(table), -1, pages_of_chunk, *pages.shape[1:]).transpose(2, 3)
    return in_chunks.to(torch.float32, memory_format=torch.contiguous_format).flatten(3, 4)


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of ``[R, heads, head_dim]``; ``angles`` is ``[R, 2, 1, head_dim / 2]``."""
    first, second = heads.chunk(2, dim=-1)
    cosine, sine = angles.unbind(1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

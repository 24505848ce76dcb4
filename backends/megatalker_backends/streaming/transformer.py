"""The sliding-window transformer over frames, with its last keys and values as memory.

Rows are ``[streams, frames, width]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.convolution import Memories
from megatalker_backends.streaming.memory import StateLayout
from megatalker_backends.streaming.products import linear
from megatalker_backends.streaming.weights import Weights


@dataclass(frozen=True, slots=True)
class Place:
    """Positions of the frames of one part, in the form that all layers share."""

    cos: Tensor
    """``[streams, frames, 1, head_dim]``."""
    sin: Tensor
    """The same shape; negative in the first half, for use with halves swapped."""
    mask: Tensor
    """``[streams * frames, 1, 1, remembered + 1]``: 0 where a frame's window has a key, -inf before the first frame."""


class WindowLayer(nn.Module):
    """One layer. Norm weights and layer scales are folded into the projections."""

    few_rows = ("qkv", "out", "gate_up", "down")
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    def __init__(self, weights: Weights, config: CodecConfig, layout: StateLayout) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.slot = layout.reserve(config.sliding_window - 1, 2 * config.num_kv_heads, config.head_dim)
        attention, mlp = weights.within("self_attn"), weights.within("mlp")
        qkv = torch.cat([attention(f"{part}_proj.weight") for part in "qkv"])
        gate_up = torch.cat([mlp("gate_proj.weight"), mlp("up_proj.weight")])
        out_scale, down_scale = weights("self_attn_layer_scale.scale"), weights("mlp_layer_scale.scale")
        self.register_buffer("qkv", (qkv * weights("input_layernorm.weight")).float())
        self.register_buffer("out", (attention("o_proj.weight") * out_scale[:, None]).float())
        self.register_buffer("gate_up", (gate_up * weights("post_attention_layernorm.weight")).float())
        self.register_buffer("down", (mlp("down_proj.weight") * down_scale[:, None]).float())

    def forward(self, parts: Sequence[Tensor], places: Sequence[Place], memories: Memories) -> list[Tensor]:
        heads = linear(_normed(parts, self.eps), self.qkv)
        parts = [*map(torch.add, parts, linear([*map(self._attend, heads, places, memories)], self.out))]
        halves = [some.chunk(2, dim=-1) for some in linear(_normed(parts, self.eps), self.gate_up)]
        return [*map(torch.add, parts, linear([F.silu(gate) * up for gate, up in halves], self.down))]

    def _attend(self, projected: Tensor, place: Place, memory: list[Tensor]) -> Tensor:
        streams, frames, _ = projected.shape
        heads = projected.view(streams, frames, -1, self.head_dim)
        turning, values = torch.split(heads, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        turned = torch.addcmul(turning * place.cos, turning.roll(self.head_dim // 2, -1), place.sin)
        queries, keys = torch.split(turned, [self.heads, self.kv_heads], dim=2)
        known = torch.cat((memory[self.slot], torch.cat((keys, values), dim=2)), dim=1)
        memory[self.slot] = known[:, frames:]
        windows = known.unfold(1, known.shape[1] - frames + 1, 1).flatten(0, 1)  # [streams * frames, heads, dim, seen]
        keys, values = windows.transpose(2, 3).chunk(2, dim=1)
        mixed = F.scaled_dot_product_attention(
            queries.flatten(0, 1).unsqueeze(2),
            keys,
            values,
            attn_mask=place.mask,
            enable_gqa=self.heads != self.kv_heads,
        )
        return mixed.view(streams, frames, -1)


class WindowTransformer(nn.Module):
    """``[streams, frames, latent_dim]`` to the same shape; a frame sees itself and ``sliding_window - 1`` before it."""

    few_rows = ("into", "out")
    inverse_frequencies: Tensor
    into: Tensor
    into_bias: Tensor
    out: Tensor
    out_bias: Tensor

    def __init__(self, weights: Weights, config: CodecConfig, layout: StateLayout) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.remembered = config.sliding_window - 1
        # The position lives in the state, as float32: exact for 2^24 frames (15 days), and no upload for each call.
        self.slot = layout.reserve(1)
        self.layers = nn.ModuleList(
            WindowLayer(weights.within(f"layers.{index}"), config, layout) for index in range(config.num_layers)
        )
        self.register_buffer("into", weights("input_proj.weight").float())
        self.register_buffer("into_bias", weights("input_proj.bias").float())
        self.register_buffer("out", (weights("output_proj.weight") * weights("norm.weight")).float())
        self.register_buffer("out_bias", weights("output_proj.bias").float())
        # In float32 and in this order, as the official decoder does: thousands of frames into a stream the rounding of
        # position times frequency (up to 2e-4 radians) is part of the result.
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        self.register_buffer("inverse_frequencies", 1.0 / (config.rope_theta**exponents))

    def forward(self, parts: Sequence[Tensor], memories: Memories) -> list[Tensor]:
        lengths = [rows.shape[1] for rows in parts]
        places = [*map(self._place, map(self._advance, memories, lengths), lengths)]
        parts = linear(parts, self.into, self.into_bias)
        for layer in self.layers:
            parts = layer(parts, places, memories)
        return linear(_normed(parts, self.eps), self.out, self.out_bias)

    def _advance(self, memory: list[Tensor], frames: int) -> Tensor:
        """Return the position of the next of these frames, ``[streams, 1]``, and move it past them."""
        position = memory[self.slot]
        memory[self.slot] = position + frames
        return position

    def _place(self, position: Tensor, frames: int) -> Place:
        steps = torch.arange(frames, device=position.device)
        angles = (position + steps)[:, :, None, None] * self.inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        age = torch.arange(self.remembered, -1, -1, device=position.device)
        seen = age <= (position + steps).flatten()[:, None]
        mask = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, -torch.inf)
        return Place(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1), mask[:, None, None])


def _normed(parts: Sequence[Tensor], eps: float) -> list[Tensor]:
    return [F.rms_norm(rows, rows.shape[-1:], eps=eps) for rows in parts]

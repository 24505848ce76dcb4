"""The transformer of the encoder: each step attends to all before it. The official one ignores its window, too."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.encoder_config import CodecEncoderConfig
from megatalker_backends.streaming.encoder.convolution import Read


class EncoderLayer(nn.Module):
    """One layer. Nothing is folded or joined: operations are those of the official encoder, as in the convolutions."""

    def __init__(self, read: Read, name: str, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.shared = config.head_dim, config.num_heads // config.num_kv_heads
        self.width, self.eps = config.hidden_size, config.norm_eps
        self.norms = [
            (read(f"{name}.{norm}_layernorm.weight"), read(f"{name}.{norm}_layernorm.bias"))
            for norm in ("input", "post_attention")
        ]
        self.query, self.key, self.value, self.out = (read(f"{name}.self_attn.{part}_proj.weight") for part in "qkvo")
        self.up, self.down = read(f"{name}.mlp.fc1.weight"), read(f"{name}.mlp.fc2.weight")
        self.scales = [read(f"{name}.{part}_layer_scale.scale") for part in ("self_attn", "mlp")]

    def forward(self, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[1, time, hidden size]`` to the same; ``cos`` and ``sin`` are ``[time, head_dim]``."""
        rows = rows + self.scales[0] * self._attend(self._normed(rows, 0), cos, sin)
        inner = F.gelu(F.linear(self._normed(rows, 1), self.up))
        return rows + self.scales[1] * F.linear(inner, self.down)

    def _normed(self, rows: Tensor, which: int) -> Tensor:
        weight, bias = self.norms[which]
        return F.layer_norm(rows, (self.width,), weight, bias, self.eps)

    def _attend(self, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (
            F.linear(rows, weight).view(1, rows.shape[1], -1, self.head_dim).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        query, key = (heads * cos + _half_turned(heads) * sin for heads in (query, key))
        if self.shared > 1:
            key, value = (heads.repeat_interleave(self.shared, dim=1) for heads in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=rows.shape[1] > 1)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.out)


class EncoderTransformer(nn.Module):
    """All layers, with rotary positions."""

    def __init__(self, read: Read, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(read, f"encoder_transformer.layers.{index}", config) for index in range(config.num_layers)
        )
        exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        self.frequencies = 1.0 / (config.rope_theta**exponents)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, time, hidden size]`` to the same."""
        angles = torch.arange(rows.shape[1]).float()[:, None] * self.frequencies
        angles = torch.cat((angles, angles), dim=1).to(rows.device)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            rows = layer(rows, cos, sin)
        return rows


def _half_turned(heads: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)

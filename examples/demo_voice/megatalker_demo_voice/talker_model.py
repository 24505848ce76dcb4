"""The talker and its code predictor for training: whole utterances at once, official names, no cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.config import ModelConfig, TransformerShape

NO_CODE = -1
"""Stands where a row has no code of a table."""


class Norm(nn.Module):
    """Root mean square normalisation, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


class SelfAttention(nn.Module):
    """Grouped-query causal attention with normalised queries and keys, and rotary positions."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._width = shape.num_heads, shape.num_kv_heads, shape.head_dim
        hidden, width = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(hidden, shape.num_heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, shape.num_kv_heads * width, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * width, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(width, shape.rms_norm_eps), Norm(width, shape.rms_norm_eps)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape
        value = self.v_proj(x).view(batch, length, self._kv_heads, self._width).transpose(1, 2)
        query = self.q_norm(self.q_proj(x).view(batch, length, self._heads, self._width)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(batch, length, self._kv_heads, self._width)).transpose(1, 2)
        query, key = (_rotate(part, *rotation).to(value.dtype) for part in (query, key))
        groups = self._heads // self._kv_heads
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        mixed = _attend(query, key, value)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class GatedMlp(nn.Module):
    """A gated feed-forward block."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward block."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(shape), GatedMlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """Layers and the last norm."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self._shape = shape
        self._through: Callable[[DecoderLayer, Tensor, tuple[Tensor, Tensor]], Tensor] = DecoderLayer.forward

    def hasten(self) -> None:
        """Compile the layers, once for all of them and for all sizes of batch."""
        self._through = torch.compile(DecoderLayer.forward, dynamic=True)

    def run(self, x: Tensor) -> Tensor:
        """``[batch, length, hidden]`` -> the same, normalised."""
        rotation = _rotation(x.shape[1], self._shape, x.device)
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            x = self._through(layer, x, rotation)
        out: Tensor = self.norm(x)
        return out


class Resize(nn.Module):
    """The text projection."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(inputs, inputs), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


@dataclass(frozen=True, slots=True)
class TalkerRows:
    """Input rows of a batch of utterances."""

    text: Tensor
    """``[batch, length]``: text id of each row."""
    codes: Tensor
    """``[batch, length, groups]``: ids of the talker's own table, then of the predictor's; or :data:`NO_CODE`."""
    speaker_row: Tensor
    """``[batch]``: the row of the speaker."""
    x_vectors: Tensor | None = None
    """``[batch, hidden]``: added to that row."""


class TalkerStack(Stack):
    """The talker's stack, with the tables of text and of code 0."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.talker)
        self.codec_embedding = nn.Embedding(config.talker.vocab_size, config.talker.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)


class PredictorStack(Stack):
    """The predictor's stack, with the tables of codes 1 to 15, which are as wide as the talker, since it reads them,
    too.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.predictor)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.predictor.vocab_size, config.talker.hidden_size)
            for _ in range(config.num_code_groups - 1)
        )

    def tables(self) -> list[Tensor]:
        """``[vocab, talker hidden]`` of each."""
        return [table.weight for table in self.codec_embedding]  # type: ignore[misc]


class CodePredictor(nn.Module):
    """Codes 1 to 15 of a frame, each from the talker's hidden state and the codes before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape, tables = config.predictor, config.num_code_groups - 1
        self.model = PredictorStack(config)
        self.lm_head = nn.ModuleList(nn.Linear(shape.hidden_size, shape.vocab_size, bias=False) for _ in range(tables))
        if config.projects_predictor:
            self.small_to_mtp_projection = nn.Linear(config.talker.hidden_size, shape.hidden_size)

    def resize(self, x: Tensor) -> Tensor:
        """Project from the talker's width to the predictor's."""
        out: Tensor = self.small_to_mtp_projection(x) if hasattr(self, "small_to_mtp_projection") else x
        return out

    def forward(self, rows: Tensor) -> Tensor:
        """``[n, groups, width]`` (hidden state, codes 0 to 14) -> ``[n, groups - 1, vocab]`` logits."""
        x = self.model.run(rows)[:, 1:]
        heads = torch.stack([head.weight for head in self.lm_head])  # type: ignore[misc]
        return torch.einsum("ngh,gvh->ngv", x.to(self._type(x)), heads.to(self._type(x))).float()

    @staticmethod
    def _type(x: Tensor) -> torch.dtype:
        return compute_type(x.device)


class TrainableTalker(nn.Module):
    """Parameters have their official names, less the leading ``talker.``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        talker, groups = config.talker, config.num_code_groups
        self.model = TalkerStack(config)
        self.text_projection = Resize(config.text_hidden_size, talker.hidden_size)
        self.codec_head = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)
        offsets = [0, *(talker.vocab_size + index * config.predictor.vocab_size for index in range(groups - 1))]
        self._offsets: Tensor
        self.register_buffer("_offsets", torch.tensor(offsets), persistent=False)
        _initialise(self, config)

    def hasten(self) -> None:
        """Compile the layers: worth it on CPUs, under autocast to bfloat16."""
        for stack in (self.model, self.code_predictor.model):
            stack.hasten()

    def hidden(self, rows: TalkerRows) -> Tensor:
        """``[batch, length, hidden]``: what the heads read."""
        return self.model.run(self.embedded(rows))

    def embedded(self, rows: TalkerRows) -> Tensor:
        """``[batch, length, hidden]``: what the layers read."""
        projected = self.text_projection(self.model.text_embedding.weight)
        sums = F.embedding(rows.text, projected.float()) + self._spoken(rows.codes).float()
        if rows.x_vectors is None:
            return sums
        here = torch.arange(sums.shape[1], device=sums.device) == rows.speaker_row[:, None]
        return sums + here[..., None] * rows.x_vectors[:, None]

    def first_logits(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., vocab]`` for code 0."""
        logits: Tensor = self.codec_head(hidden)
        return logits.float()

    def rest_logits(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """``[n, hidden]`` and the true ``[n, groups]`` codes -> ``[n, groups - 1, predictor vocab]``."""
        known = F.embedding(codes[:, :-1] + self._offsets[:-1], self.code_predictor.resize(self._tables()).float())
        first = self.code_predictor.resize(hidden).float().unsqueeze(1)
        logits: Tensor = self.code_predictor(torch.cat([first, known], dim=1))
        return logits

    def _tables(self) -> Tensor:
        return torch.cat([self.model.codec_embedding.weight, *self.code_predictor.model.tables()])

    def _spoken(self, codes: Tensor) -> Tensor:
        """The sum of each row's code embeddings: as a product with a table of ones, which learns much faster."""
        tables, flat = self._tables(), codes.flatten(0, 1)
        width = -(-(len(tables) + 1) // 64) * 64  # a round number, with room for rows without a code
        ones = torch.zeros(len(flat), width, device=codes.device, dtype=compute_type(codes.device))
        ones.scatter_(1, torch.where(flat == NO_CODE, len(tables), flat + self._offsets), 1.0)
        out: Tensor = ones @ F.pad(tables, (0, 0, 0, width - len(tables))).to(ones.dtype)
        return out.view(*codes.shape[:2], -1)


def compute_type(device: torch.device) -> torch.dtype:
    """The type of matrix products here and now."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    # for short utterances on a CPU, five times as fast as what the function above does there
    length, width = query.shape[-2:]
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ key.transpose(-1, -2)).float().mul(width**-0.5).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1).to(value.dtype) @ value


def _rotation(length: int, shape: TransformerShape, device: torch.device) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * shape.rope_theta**-half
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def _initialise(talker: TrainableTalker, config: ModelConfig) -> None:
    """Signals of unit size everywhere, text as loud as codes: else the talker does not listen to its text."""
    for name, parameter in talker.named_parameters():
        if "norm" in name:
            continue
        layers = config.predictor.num_layers if "code_predictor" in name else config.talker.num_layers
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("text_embedding.weight"):
            nn.init.normal_(parameter, std=1.0)
        elif "code_predictor.model.codec_embedding" in name:
            nn.init.normal_(parameter, std=0.15)
        elif name.endswith("codec_embedding.weight"):
            nn.init.normal_(parameter, std=0.5)
        elif "head" in name:
            nn.init.normal_(parameter, std=0.5 / math.sqrt(parameter.shape[1]))
        else:
            gain = 1 / math.sqrt(2 * layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            gain = 1.7 if "text_projection" in name else gain
            nn.init.normal_(parameter, std=gain / math.sqrt(parameter.shape[1]))

"""Packed weights, read from a checkpoint by their official names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import TransformerShape

PREDICTOR = "talker.code_predictor"
TALKER_STACK, PREDICTOR_STACK = "talker.model", f"{PREDICTOR}.model"


class LayerWeights(NamedTuple):
    """One decoder layer. Norms are float32, matrices ``[outputs, inputs]`` in the type asked for."""

    input_norm: Tensor
    qkv: Tensor
    """Query, key and value heads below one another."""
    query_norm: Tensor
    key_norm: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class StackWeights:
    """The layers of one transformer and its last norm."""

    shape: TransformerShape
    layers: tuple[LayerWeights, ...]
    norm: Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Talker and code predictor."""

    talker: StackWeights
    predictor: StackWeights
    head: Tensor
    """``[talker vocab, hidden]``: code 0."""
    rest_heads: tuple[Tensor, ...]
    """``[predictor vocab, predictor hidden]`` for each code after code 0."""
    embeddings: Tensor
    """``[talker vocab + (groups - 1) * predictor vocab, hidden]``: the tables of all code groups below one another."""
    predictor_embeddings: Tensor
    """The same rows as the predictor takes them, behind its projection."""
    offsets: Tensor
    """``[groups]`` int64: where each group's table begins."""
    projection: tuple[Tensor, Tensor] | None
    """Weight and float32 bias of the way from the talker's width to the predictor's; ``None``: they are equal."""


class _Reader:
    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint, self._device, self._dtype = checkpoint, device, dtype

    def matrix(self, *names: str) -> Tensor:
        rows = torch.cat([self._checkpoint.tensor(f"{name}.weight") for name in names])
        return rows.to(self._device, self._dtype).contiguous()

    def vector(self, name: str) -> Tensor:
        return self._checkpoint.tensor(name).to(self._device, torch.float32, copy=True)

    def layer(self, name: str) -> LayerWeights:
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return LayerWeights(
            input_norm=self.vector(f"{name}.input_layernorm.weight"),
            qkv=self.matrix(*(f"{attention}.{part}_proj" for part in "qkv")),
            query_norm=self.vector(f"{attention}.q_norm.weight"),
            key_norm=self.vector(f"{attention}.k_norm.weight"),
            output=self.matrix(f"{attention}.o_proj"),
            mlp_norm=self.vector(f"{name}.post_attention_layernorm.weight"),
            gate_up=self.matrix(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self.matrix(f"{mlp}.down_proj"),
        )

    def layers(self, name: str, shape: TransformerShape) -> Iterator[LayerWeights]:
        return (self.layer(f"{name}.layers.{index}") for index in range(shape.num_layers))

    def stack(self, name: str, shape: TransformerShape, *, layers: bool) -> StackWeights:
        loaded = tuple(self.layers(name, shape)) if layers else ()
        return StackWeights(shape, loaded, self.vector(f"{name}.norm.weight"))


def read_layers(checkpoint: Checkpoint, stack: str, shape: TransformerShape) -> Iterator[LayerWeights]:
    """Read one layer after another of :data:`TALKER_STACK` or :data:`PREDICTOR_STACK`, in float32 on the CPU."""
    return _Reader(checkpoint, torch.device("cpu"), torch.float32).layers(stack, shape)


def load_weights(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, *, layers: bool = True
) -> ModelWeights:
    """Read and pack; nothing of the memory-mapped files stays referenced. ``layers=False`` leaves the stacks empty."""
    config, read = checkpoint.config, _Reader(checkpoint, device, dtype)
    groups = range(config.num_code_groups - 1)
    tables = [f"{PREDICTOR}.model.codec_embedding.{index}" for index in groups]
    embeddings = read.matrix("talker.model.codec_embedding", *tables)
    projection = None
    if config.projects_predictor:
        name = f"{PREDICTOR}.small_to_mtp_projection"
        projection = (read.matrix(name), read.vector(f"{name}.bias"))
    sizes = [config.talker.vocab_size, *(config.predictor.vocab_size for _ in groups)]
    return ModelWeights(
        talker=read.stack(TALKER_STACK, config.talker, layers=layers),
        predictor=read.stack(PREDICTOR_STACK, config.predictor, layers=layers),
        head=read.matrix("talker.codec_head"),
        rest_heads=tuple(read.matrix(f"{PREDICTOR}.lm_head.{index}") for index in groups),
        embeddings=embeddings,
        predictor_embeddings=_project(embeddings, projection),
        offsets=torch.tensor([sum(sizes[:group]) for group in range(len(sizes))], device=device),
        projection=projection,
    )


def _project(embeddings: Tensor, projection: tuple[Tensor, Tensor] | None) -> Tensor:
    """Every code's row as the predictor sees it: the projection is the same each time, so it is done once, here."""
    if projection is None:
        return embeddings
    weight, bias = projection
    return F.linear(embeddings.float(), weight.float(), bias).to(embeddings.dtype)

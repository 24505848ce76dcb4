"""Everything of a model that the kernel only reads, as it reads it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatalker_kernels.constants import DECAY_ROWS, GUMBEL_ROWS, WEIGHT
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.packing import FRAGMENT, PackedWeights, StreamLayout, interleave
from megatalker_kernels.phases import StackName
from megatalker_kernels.shapes import KernelShape, StackShape


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    """One layer; matrices are ``[out, in]``, norms are vectors."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    input_norm: Tensor
    q_norm: Tensor
    k_norm: Tensor
    post_norm: Tensor


class WeightSource(Protocol):
    """Where weights come from. Tensors are asked for one by one and not kept, so a source may read them from a file."""

    def layer(self, stack: StackName, index: int) -> UnpackedLayer: ...

    def final_norm(self, stack: StackName) -> Tensor: ...

    def head(self, codebook: int) -> Tensor:
        """``[vocab, hidden]``: 0 is the talker's."""
        ...

    def embedding(self, codebook: int) -> Tensor:
        """``[vocab, talker hidden]``: what a code adds to the talker's input."""
        ...

    def projection(self) -> tuple[Tensor, Tensor]:
        """Weight ``[predictor hidden, talker hidden]`` and bias; only asked for where the hidden sizes differ."""
        ...


@dataclass(frozen=True, slots=True)
class ModelConstants:
    """Numbers of a model that are not sizes."""

    talker_eps: float
    predictor_eps: float
    talker_theta: float
    predictor_theta: float
    """Bases of the rotary embedding."""
    eos: int


class PackedModel:
    """A model on one device.

    Args:
        shape: the kernel's sizes.
        constants: see there.
        source: the weights; every tensor is moved and converted as needed.
        gumbel_table: int64 ``[768, 4]`` of the sampling contract.
        decay_table: int64 ``[256, 4]``.
        device: where everything lies.

    Raises:
        ShapeError: a tensor has another shape than ``shape`` says.
    """

    def __init__(
        self,
        shape: KernelShape,
        constants: ModelConstants,
        source: WeightSource,
        gumbel_table: Tensor,
        decay_table: Tensor,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.constants = constants
        self.device = device
        self.gumbel_table = _table(gumbel_table, 2 * GUMBEL_ROWS).to(device)
        self.decay_table = _table(decay_table, DECAY_ROWS).to(device)
        self.weights = PackedWeights(shape, device)
        self.predictor_norms = self._pack_stack("predictor", shape.predictor, source)
        self.talker_norms = self._pack_stack("talker", shape.talker, source)
        self.weights.put("talker.head", source.head(0))
        for codebook in range(1, shape.code_groups):
            self.weights.put(f"predictor.head.{codebook}", source.head(codebook))
        self.sum_tables = [self._embedding(source, codebook) for codebook in range(shape.code_groups)]
        """Embeddings that codes add to the talker's input: bfloat16 ``[vocab, talker hidden]``."""
        self.input_tables = self.sum_tables
        """Embeddings of codes as input of the predictor: bfloat16 ``[vocab, predictor hidden]``."""
        self.projection_bias: Tensor | None = None
        if shape.projects:
            weight, bias = (tensor.to(device).float() for tensor in source.projection())
            self.weights.put("projection", weight)
            self.projection_bias = bias.contiguous()
            self.input_tables = [torch.addmm(bias, table.float(), weight.T).to(WEIGHT) for table in self.sum_tables]
        # Positions 0 ... code_groups - 1; the talker's run to the last page's end.
        self.predictor_rope = rope_table(shape.predictor, constants.predictor_theta, shape.code_groups, device)
        self.talker_rope = rope_table(shape.talker, constants.talker_theta, shape.max_positions, device)

    @property
    def device_bytes(self) -> int:
        """Bytes of everything that lies on the device."""
        tensors = [self.gumbel_table, self.decay_table, self.weights.data, self.weights.block_offset]
        tensors += [self.predictor_norms, self.talker_norms, *self.sum_tables, self.predictor_rope, self.talker_rope]
        if self.projection_bias is not None:
            tensors += [self.projection_bias, *self.input_tables]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _pack_stack(self, name: StackName, stack: StackShape, source: WeightSource) -> Tensor:
        """Pack the matrices of a stack; return its norms in float32: of each layer input, q, k, post; then the last."""
        norms = []
        for index in range(stack.layers):
            layer = source.layer(name, index)
            self.weights.put(f"{name}.{index}.qkv", torch.cat((layer.q, layer.k, layer.v)))
            self.weights.put(f"{name}.{index}.out", layer.out)
            self.weights.put(f"{name}.{index}.gate_up", interleave(layer.gate, layer.up))
            self.weights.put(f"{name}.{index}.down", layer.down)
            norms += [layer.input_norm, layer.q_norm, layer.k_norm, layer.post_norm]
        norms.append(source.final_norm(name))
        packed = torch.cat([norm.to(self.device).float() for norm in norms])
        expected = stack.layers * stack.norms + stack.hidden
        if packed.numel() != expected:
            raise ShapeError(f"the {name}'s norms have {packed.numel()} weights, expected {expected}")
        return packed

    def _embedding(self, source: WeightSource, codebook: int) -> Tensor:
        vocab = self.shape.predictor.vocab if codebook else self.shape.talker.vocab
        table = source.embedding(codebook)
        if tuple(table.shape) != (vocab, self.shape.talker.hidden):
            raise ShapeError(
                f"the embedding of codebook {codebook} has shape {list(table.shape)}, "
                f"expected [{vocab}, {self.shape.talker.hidden}]"
            )
        return table.to(self.device, WEIGHT).contiguous()


def packed_bytes(shape: KernelShape) -> int:
    """Bytes that a :class:`PackedModel` of this shape takes, without making one."""
    talker, predictor, others = shape.talker, shape.predictor, shape.code_groups - 1
    rows = talker.vocab + others * predictor.vocab
    tables = rows * talker.hidden * WEIGHT.itemsize
    if shape.projects:
        tables += rows * predictor.hidden * WEIGHT.itemsize + predictor.hidden * 4
    norms = sum(stack.layers * stack.norms + stack.hidden for stack in (talker, predictor)) * 4
    ropes = (shape.max_positions * talker.head_dim + shape.code_groups * predictor.head_dim) * 4
    sampling = (2 * GUMBEL_ROWS + DECAY_ROWS) * 4 * 8
    matrices = StreamLayout(shape).fragments * FRAGMENT * WEIGHT.itemsize + shape.blocks * 8
    return matrices + tables + norms + ropes + sampling


def rope_table(stack: StackShape, theta: float, positions: int, device: torch.device) -> Tensor:
    """Cosines and sines, float32 ``[positions, 2, head_dim / 2]``, in float32 arithmetic as models are trained with."""
    exponents = torch.arange(0, stack.head_dim, 2).float() / stack.head_dim
    angles = torch.outer(torch.arange(positions).float(), 1.0 / theta**exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device)


def _table(table: Tensor, rows: int) -> Tensor:
    if tuple(table.shape) != (rows, 4) or table.dtype != torch.int64:
        raise ShapeError(f"a sampling table is {table.dtype} {list(table.shape)}, expected int64 [{rows}, 4]")
    return table.contiguous()

"""Parts of a checkpoint that the kernel needs: sizes, constants, and weights by their official names."""

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig, TransformerShape
from megatalker.sampling.piecewise import decay_table, gumbel_table
from megatalker_kernels.model import ModelConstants, PackedModel, UnpackedLayer
from megatalker_kernels.phases import StackName
from megatalker_kernels.shapes import KernelShape, StackShape

PREDICTOR = "talker.code_predictor"
STACKS: dict[StackName, str] = {"talker": "talker.model", "predictor": f"{PREDICTOR}.model"}


class CheckpointWeights:
    """A :class:`megatalker_kernels.model.WeightSource` that reads a checkpoint; nothing of it stays referenced."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def layer(self, stack: StackName, index: int) -> UnpackedLayer:
        name = f"{STACKS[stack]}.layers.{index}"
        return UnpackedLayer(
            q=self._weight(f"{name}.self_attn.q_proj"),
            k=self._weight(f"{name}.self_attn.k_proj"),
            v=self._weight(f"{name}.self_attn.v_proj"),
            out=self._weight(f"{name}.self_attn.o_proj"),
            gate=self._weight(f"{name}.mlp.gate_proj"),
            up=self._weight(f"{name}.mlp.up_proj"),
            down=self._weight(f"{name}.mlp.down_proj"),
            input_norm=self._weight(f"{name}.input_layernorm"),
            q_norm=self._weight(f"{name}.self_attn.q_norm"),
            k_norm=self._weight(f"{name}.self_attn.k_norm"),
            post_norm=self._weight(f"{name}.post_attention_layernorm"),
        )

    def final_norm(self, stack: StackName) -> Tensor:
        return self._weight(f"{STACKS[stack]}.norm")

    def head(self, codebook: int) -> Tensor:
        return self._weight(f"{PREDICTOR}.lm_head.{codebook - 1}" if codebook else "talker.codec_head")

    def embedding(self, codebook: int) -> Tensor:
        if codebook == 0:
            return self._weight("talker.model.codec_embedding")
        return self._weight(f"{PREDICTOR}.model.codec_embedding.{codebook - 1}")

    def projection(self) -> tuple[Tensor, Tensor]:
        name = f"{PREDICTOR}.small_to_mtp_projection"
        return self._weight(name), self._checkpoint.tensor(f"{name}.bias")

    def _weight(self, name: str) -> Tensor:
        return self._checkpoint.tensor(f"{name}.weight")


def stack_shape(shape: TransformerShape) -> StackShape:
    """Sizes of one transformer as the kernel counts them."""
    return StackShape(
        hidden=shape.hidden_size,
        intermediate=shape.intermediate_size,
        layers=shape.num_layers,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab=shape.vocab_size,
    )


def pack_checkpoint(checkpoint: Checkpoint, shape: KernelShape, device: torch.device) -> PackedModel:
    """The checkpoint's talker and predictor on ``device``, as the kernel reads them."""
    return PackedModel(
        shape,
        _constants(checkpoint.config),
        CheckpointWeights(checkpoint),
        torch.tensor(gumbel_table()),
        torch.tensor(decay_table()),
        device,
    )


def _constants(config: ModelConfig) -> ModelConstants:
    return ModelConstants(
        talker_eps=config.talker.rms_norm_eps,
        predictor_eps=config.predictor.rms_norm_eps,
        talker_theta=config.talker.rope_theta,
        predictor_theta=config.predictor.rope_theta,
        eos=config.codec_eos_id,
    )

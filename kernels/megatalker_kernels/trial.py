"""A model with random weights and streams with made-up pasts: what the diff tool and the timings run on."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from megatalker_kernels.constants import DECAY_ROWS, GUMBEL_BITS, GUMBEL_ROWS, PAGE, WEIGHT
from megatalker_kernels.model import ModelConstants, PackedModel, UnpackedLayer
from megatalker_kernels.params import Sampling, sampling, sampling_filter
from megatalker_kernels.phases import StackName
from megatalker_kernels.schedule import Row
from megatalker_kernels.shapes import KernelShape, StackShape
from megatalker_kernels.workspace import Assignment, Workspace

_PREDICTOR = StackShape(1024, 3072, 5, 16, 8, 128, 2048)
MODELS = {
    "0.6B": (StackShape(1024, 3072, 28, 16, 8, 128, 3072), _PREDICTOR),
    "1.7B": (StackShape(2048, 6144, 28, 16, 8, 128, 3072), _PREDICTOR),
    "demo": (StackShape(256, 512, 6, 4, 2, 64, 1152), StackShape(128, 256, 2, 2, 1, 64, 128)),
    "tiny": (StackShape(96, 128, 2, 4, 2, 32, 1152), StackShape(64, 96, 2, 4, 2, 32, 128)),
}
"""Talker and predictor sizes by name."""
CODE_GROUPS = 16


class RandomWeights:
    """A source of reproducible weights of sensible size, made on the device."""

    def __init__(self, shape: KernelShape, device: torch.device, seed: int) -> None:
        self._shape = shape
        self._device = device
        self._seed = seed

    def _normal(self, name: str, *size: int, scale: float) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        return torch.randn(size, generator=generator, device=self._device).mul_(scale).to(WEIGHT)

    def _matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return self._normal(name, rows, columns, scale=gain / math.sqrt(columns))

    def _norm(self, name: str, size: int) -> Tensor:
        return 1 + self._normal(name, size, scale=0.1)

    def layer(self, stack: StackName, index: int) -> UnpackedLayer:
        s = self._shape.stack(stack)
        name = f"{stack}.{index}."
        return UnpackedLayer(
            q=self._matrix(name + "q", s.attention, s.hidden),
            k=self._matrix(name + "k", s.kv_heads * s.head_dim, s.hidden),
            v=self._matrix(name + "v", s.kv_heads * s.head_dim, s.hidden),
            out=self._matrix(name + "out", s.hidden, s.attention, 0.5),
            gate=self._matrix(name + "gate", s.intermediate, s.hidden),
            up=self._matrix(name + "up", s.intermediate, s.hidden),
            down=self._matrix(name + "down", s.hidden, s.intermediate, 0.5),
            input_norm=self._norm(name + "input_norm", s.hidden),
            q_norm=self._norm(name + "q_norm", s.head_dim),
            k_norm=self._norm(name + "k_norm", s.head_dim),
            post_norm=self._norm(name + "post_norm", s.hidden),
        )

    def final_norm(self, stack: StackName) -> Tensor:
        size = self._shape.talker.hidden if stack == "talker" else self._shape.predictor.hidden
        return self._norm(f"{stack}.final_norm", size)

    def head(self, codebook: int) -> Tensor:
        s = self._shape.predictor if codebook else self._shape.talker
        return self._matrix(f"head.{codebook}", s.vocab, s.hidden, 2.5)

    def embedding(self, codebook: int) -> Tensor:
        vocab = self._shape.predictor.vocab if codebook else self._shape.talker.vocab
        return self._normal(f"embedding.{codebook}", vocab, self._shape.talker.hidden, scale=0.2)

    def projection(self) -> tuple[Tensor, Tensor]:
        wide, narrow = self._shape.talker.hidden, self._shape.predictor.hidden
        return self._matrix("projection", narrow, wide), self._normal("projection.bias", narrow, scale=0.1)


def random_model(shape: KernelShape, device: torch.device, seed: int = 0) -> PackedModel:
    """A packed model with random weights."""
    gumbel, decay = sampling_tables()
    constants = ModelConstants(1e-6, 1e-6, 1e6, 1e6, eos=shape.first_suppressed + 2)
    return PackedModel(shape, constants, RandomWeights(shape, device, seed), gumbel, decay, device)


def sampling_tables() -> tuple[Tensor, Tensor]:
    """Tables like those of the sampling contract, up to the last bits; the kernel reads whatever it is given."""
    octave, segment = np.divmod(np.arange(GUMBEL_ROWS), 16)
    width = 2.0**octave / 16 * 2.0**-25
    points = ((16 + segment) * width)[:, None] + width[:, None] * np.arange(4) / 3
    halves = (-np.log(-np.log(points)), -np.log(-np.log1p(-points)))
    distances = (np.arange(DECAY_ROWS)[:, None] + np.arange(4) / 3) / 8
    return _cubics(np.concatenate(halves), GUMBEL_BITS), _cubics(np.exp(-distances), 40)


def _cubics(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], bits: int) -> Tensor:
    powers = np.array([[1, 0, 0, 0], [-5.5, 9, -4.5, 1], [9, -22.5, 18, -4.5], [-4.5, 13.5, -13.5, 4.5]])
    return torch.from_numpy(np.rint(values @ powers.T * 2.0**bits).astype(np.int64))


@dataclass(frozen=True, slots=True)
class TrialStreams:
    """The slots of a workspace with a made-up past: how many positions each has behind it."""

    positions: tuple[int, ...]

    def rows(self, slots: range, frame: int, forced: list[tuple[int, ...]] | None = None) -> tuple[Row, ...]:
        """Rows of a decode launch."""
        return tuple(
            Row(slot, self.positions[slot], frame, None if forced is None else forced[index])
            for index, slot in enumerate(slots)
        )


def samplings() -> list[Sampling]:
    """One of each kind of filter; slots take them in turn."""
    usual = partial(sampling_filter, do_sample=True, temperature=0.9, top_k=50, top_p=1.0)
    filters = [
        usual(),
        usual(do_sample=False),
        usual(top_p=0.8),
        usual(top_k=None, top_p=0.9),
        usual(top_k=300, temperature=1.5),
        usual(top_k=300, top_p=0.7),
    ]
    return [sampling(one, one, seed=12345 + index, penalty=1.05, min_frames=2) for index, one in enumerate(filters)]


def fill_streams(
    space: Workspace, positions: tuple[int, ...], seed: int = 1, kinds: Sequence[Sampling] | None = None
) -> TrialStreams:
    """Give every slot pages, keys, values, pending logits, a hidden state, and one of ``kinds`` to sample with."""
    kinds = samplings() if kinds is None else kinds
    generator = torch.Generator(space.device).manual_seed(seed)
    for buffer in (space.talker_kv, space.pending, space.hidden, space.text):
        buffer.normal_(generator=generator)
    space.pending.mul_(2.5)
    ends = list(accumulate(position // PAGE + 1 for position in positions))
    space.assign(
        [
            Assignment(slot, kinds[slot % len(kinds)], range(slot, 60, 7), range(begin, end))
            for slot, (begin, end) in enumerate(pairwise([0, *ends]))
        ]
    )
    return TrialStreams(positions)


def pages_for(positions: tuple[int, ...]) -> int:
    """Pages that :func:`fill_streams` hands out."""
    return sum(position // PAGE + 1 for position in positions)

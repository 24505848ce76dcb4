"""Weights in the order in which the kernel reads them.

Block ``b`` of the grid computes the tiles ``b, b + blocks, ...`` of every matrix; a tile is 8 weight rows. Its share of
the model is one contiguous stream: the matrices in the order of use, of each its tiles two by two, of each pair its
``shape.stage_columns`` columns at a time, of these the 32-column fragments of the one tile, then those of the other.
Where a tile has enough columns, the fragments that one warp multiplies, every eighth, are neighbours. A fragment of 512
bytes is four matrices as tensor cores read them from shared memory, eight rows of 16 bytes each: of every eight
columns, matrix ``m`` has pair ``PAIRS[m]``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker_kernels.constants import KBLOCK, TILE, WARPS, WEIGHT
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.phases import HEAD, LAYER, PROJECT, PhaseType, StackName
from megatalker_kernels.shapes import KernelShape

FRAGMENT = TILE * KBLOCK
"""Weights of one fragment."""
PAIRS = (0, 2, 1, 3)
"""Order of pairs in each eight columns: one product takes the first two matrices of a fragment, the next the others."""


@dataclass(frozen=True, slots=True)
class StreamMatrix:
    """One matrix of the stream, ``[rows, columns]``."""

    name: str
    rows: int
    columns: int

    @property
    def tiles(self) -> int:
        return self.rows // TILE

    @property
    def fragments_of_tile(self) -> int:
        return self.columns // KBLOCK


def stream(shape: KernelShape) -> Iterator[StreamMatrix]:
    """All matrices, in the order in which they lie in a block's stream."""
    if shape.projects:
        yield from _matrix(shape, "predictor", PROJECT, "projection")
    yield from _layers(shape, "predictor")
    for codebook in range(1, shape.code_groups):
        yield from _matrix(shape, "predictor", HEAD, f"predictor.head.{codebook}")
    yield from _layers(shape, "talker")
    yield from _matrix(shape, "talker", HEAD, "talker.head")


def _layers(shape: KernelShape, stack: StackName) -> Iterator[StreamMatrix]:
    for layer in range(shape.stack(stack).layers):
        for phase in LAYER:
            yield from _matrix(shape, stack, phase, f"{stack}.{layer}.{phase.kind}")


def _matrix(shape: KernelShape, stack: StackName, phase: PhaseType, name: str) -> Iterator[StreamMatrix]:
    extent = shape.extent(phase, stack)
    if extent is not None:
        yield StreamMatrix(name, *extent)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """The matrix ``gate_up``, ``[2 * intermediate, hidden]``: tiles of 4 gate rows and the 4 up rows alike."""
    half = TILE // 2
    pair = (gate.reshape(-1, half, gate.shape[1]), up.reshape(-1, half, up.shape[1]))
    return torch.cat(pair, dim=1).reshape(-1, gate.shape[1])


class StreamLayout:
    """Where each tile lies. Offsets are counted in fragments of 512 bytes from the start of the whole buffer."""

    def __init__(self, shape: KernelShape) -> None:
        self.matrices = {matrix.name: matrix for matrix in stream(shape)}
        self._blocks = shape.blocks
        self._stage_fragments = shape.stage_columns // KBLOCK
        self._within: dict[str, Tensor] = {}
        size = torch.zeros(shape.blocks, dtype=torch.int64)
        for matrix in self.matrices.values():
            self._within[matrix.name] = size
            size = size + self._tiles_of_blocks(matrix) * matrix.fragments_of_tile
        self.block_fragments = size
        """``[blocks]``: length of each block's stream."""
        self.block_starts = size.cumsum(0) - size
        self.fragments = int(size.sum())

    def _tiles_of_blocks(self, matrix: StreamMatrix) -> Tensor:
        return (matrix.tiles - torch.arange(self._blocks) + self._blocks - 1) // self._blocks

    def fragments_of(self, name: str) -> Tensor:
        """``[tiles, fragments of a tile]``: the place of each fragment of one matrix."""
        matrix = self.matrices[name]
        tile, fragment = torch.arange(matrix.tiles), torch.arange(matrix.fragments_of_tile)
        block, local = tile % self._blocks, tile // self._blocks
        of_pair = (self._tiles_of_blocks(matrix)[block] - local // 2 * 2).clamp(max=2)
        starts = self.block_starts[block] + self._within[name][block] + local // 2 * 2 * matrix.fragments_of_tile
        stage = fragment // self._stage_fragments * self._stage_fragments
        of_stage = (matrix.fragments_of_tile - stage).clamp(max=self._stage_fragments)
        place = fragment - stage
        by_warp = place % WARPS * (self._stage_fragments // WARPS) + place // WARPS
        place = torch.where(of_stage == self._stage_fragments, by_warp, place)
        return starts[:, None] + of_pair[:, None] * stage + (local % 2)[:, None] * of_stage + place


class PackedWeights:
    """All matrices of a model on one device, in the kernel's order.

    Args:
        shape: the kernel's sizes.
        device: where the weights lie.
    """

    def __init__(self, shape: KernelShape, device: torch.device) -> None:
        self.layout = StreamLayout(shape)
        self.data = torch.empty(self.layout.fragments, FRAGMENT, dtype=WEIGHT, device=device)
        self.block_offset = (self.layout.block_starts * FRAGMENT * self.data.element_size()).to(device)
        """``[blocks]`` int64: bytes from the start of ``data`` to each block's stream."""

    def put(self, name: str, weight: Tensor) -> None:
        """Store one matrix (``[rows, columns]``, any floating type, any device), rounded to ``WEIGHT``.

        Raises:
            ShapeError: ``weight`` has another shape than the stream's matrix of this name.
        """
        matrix = self.layout.matrices[name]
        if tuple(weight.shape) != (matrix.rows, matrix.columns):
            raise ShapeError(
                f"weight {name} has shape {list(weight.shape)}, expected [{matrix.rows}, {matrix.columns}]"
            )
        weight = weight.to(self.data.device, WEIGHT)
        pairs = weight.view(matrix.tiles, TILE, matrix.fragments_of_tile, KBLOCK // 8, len(PAIRS), 2)[..., PAIRS, :]
        where = self.layout.fragments_of(name).flatten().to(self.data.device)
        self.data.index_copy_(0, where, pairs.permute(0, 2, 4, 1, 3, 5).reshape(-1, FRAGMENT))

    def get(self, name: str) -> Tensor:
        """One matrix as it was, ``WEIGHT`` ``[rows, columns]``."""
        matrix = self.layout.matrices[name]
        where = self.layout.fragments_of(name).flatten().to(self.data.device)
        matrices = self.data.index_select(0, where).view(
            matrix.tiles, matrix.fragments_of_tile, len(PAIRS), TILE, KBLOCK // 8, 2
        )[:, :, PAIRS]  # which is its own inverse
        return matrices.permute(0, 3, 1, 4, 2, 5).reshape(matrix.rows, matrix.columns)

"""What a wide launch does with its rows, as arrays for the kernel."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker_kernels.constants import CHUNK, ROWS
from megatalker_kernels.params import ROW_FIELDS
from megatalker_kernels.schedule import Launch
from megatalker_kernels.shapes import KernelShape

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plan:
    """See ``csrc/wide_params.cuh``."""

    row: Numbers
    """``[rows, words of the structure Row]``"""
    chunk: Numbers
    heard: Numbers
    source: Numbers

    @property
    def padded(self) -> int:
        """Rows that operands have room for."""
        return -(-len(self.row) // (2 * ROWS)) * 2 * ROWS

    def joined(self) -> Tensor:
        """All arrays one behind the other."""
        return torch.from_numpy(
            np.concatenate([part.ravel() for part in (self.row, self.chunk, self.heard, self.source)])
        )

    def starts(self) -> list[int]:
        """Where each begins."""
        return [0, *accumulate(part.size for part in (self.row, self.chunk, self.heard))]


def plan_rows(shape: KernelShape, launch: Launch) -> Plan:
    """The plan of a wide launch."""
    nothing = (0,) * shape.code_groups
    row = np.array(
        [
            (each.slot, each.position, each.frame, each.forced is not None, *(each.forced or nothing))
            for each in launch.rows
        ],
        dtype=np.int32,
    )
    chunks = row[:, ROW_FIELDS.index("position")] // CHUNK + 1
    first = np.repeat(chunks.cumsum() - chunks, chunks)
    numbers = np.arange(len(first)) - first
    chunk = np.repeat(np.arange(len(row)), chunks) * shape.max_chunks + numbers
    wanted = np.array([each.heard for each in launch.rows])
    heard = np.where(wanted, wanted.cumsum() - 1, -1)
    return Plan(row, chunk.astype(np.int32), heard.astype(np.int32), wanted.nonzero()[0].astype(np.int32))

"""Plan of a wide launch, row by row, as arrays for the kernel."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker_kernels.constants import CHUNK
from megatalker_kernels.params import ROW_FIELDS
from megatalker_kernels.schedule import Launch, PackedRows, Row
from megatalker_kernels.shapes import KernelShape

Numbers = NDArray[np.int32]

REMEMBERED = 256
"""Plans of lone prompts that are cached, at most."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """See ``csrc/wide_params.cuh``."""

    row: Numbers
    """``[rows, words of the structure Row]``"""
    chunk: Numbers
    first: Numbers
    heard: Numbers
    source: Numbers

    def joined(self) -> Tensor:
        """Return all arrays in one, one after another."""
        return torch.from_numpy(
            np.concatenate([part.ravel() for part in (self.row, self.chunk, self.first, self.heard, self.source)])
        )

    def starts(self) -> list[int]:
        """Return where each array begins in :meth:`joined`."""
        return [0, *accumulate(part.size for part in (self.row, self.chunk, self.first, self.heard))]


def plan_rows(shape: KernelShape, launch: Launch) -> LaunchPlan:
    """Plan a wide launch. Plans of lone prompts are cached: making one takes longer than the launch."""
    rows = launch.rows
    if not isinstance(rows, PackedRows) or len(rows.parts) > 1:
        return _plan(shape, rows)
    slot, positions, heard = rows.parts[0]
    plan = _plan_of_one(shape, positions, heard)
    row = plan.row.copy()
    row[:, ROW_FIELDS.index("slot")] = slot
    return replace(plan, row=row)


def remember_plans(shape: KernelShape) -> None:
    """Cache the plans of lone prompts of each length; otherwise the first of each length takes 0.2 ms to plan."""
    for length in range(1, REMEMBERED + 1):
        _plan_of_one(shape, range(length), True)


@lru_cache(REMEMBERED)
def _plan_of_one(shape: KernelShape, positions: range, heard: bool) -> LaunchPlan:
    return _plan(shape, PackedRows([(0, positions, heard)]))


def _plan(shape: KernelShape, rows: tuple[Row, ...] | PackedRows) -> LaunchPlan:
    row = np.zeros((len(rows), len(ROW_FIELDS) + shape.code_groups), np.int32)
    if isinstance(rows, PackedRows):
        row[:, 0], row[:, 1], wanted = rows.slot, rows.position, rows.heard
    else:
        slot, position, frame, forced, heard = zip(*rows, strict=True)
        for field, values in enumerate((slot, position, frame)):
            row[:, field] = values
        for index, codes in enumerate(forced):
            if codes is not None:
                row[index, 3:] = (True, *codes)
        wanted = np.array(heard)
    positions = row[:, ROW_FIELDS.index("position")]
    chunks = positions // CHUNK + 1
    first = chunks.cumsum() - chunks
    of_row = np.repeat(np.arange(len(row)), chunks)
    numbers = np.arange(len(of_row)) - first[of_row]
    lengths = np.minimum(positions[of_row] + 1 - numbers * CHUNK, CHUNK)
    chunk = (of_row * shape.max_chunks + numbers)[np.argsort(-lengths, kind="stable")]
    place = np.where(wanted, wanted.cumsum() - 1, -1)
    source = wanted.nonzero()[0]
    return LaunchPlan(row, *(part.astype(np.int32) for part in (chunk, first, place, source)))

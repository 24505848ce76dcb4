"""Schedule of one launch: its phases in order, each of which publishes what the next one awaits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatalker_kernels.constants import CHUNK, ROWS, WIDE_ROWS, WIDE_STREAMS
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.phases import APPEND, BEGIN, COMBINE, HEAD, LAYER, PROJECT, SUM, PhaseType, StackName
from megatalker_kernels.shapes import KernelShape


class Row(NamedTuple):
    """One row of a launch: a stream that takes a frame, or one position of a prompt."""

    slot: int
    position: int
    """Index of the key/value pair that this row writes."""
    frame: int = 0
    """Index of the frame: counter of the sampling noise."""
    forced: tuple[int, ...] | None = None
    """Codes to take instead of sampling."""
    heard: bool = True
    """Whether the row's hidden state and logits are wanted; in a prompt, only the last row's are."""


class PackedRows:
    """The rows of prompts, as arrays: there are thousands, and a :class:`Row` for each would take ten times as long.

    Args:
        parts: of each prompt its slot, the positions that are taken, and whether the last of them is heard.
    """

    def __init__(self, parts: Sequence[tuple[int, range, bool]]) -> None:
        self.parts = parts
        self._lengths = [len(positions) for _, positions, _ in parts]

    @cached_property
    def slot(self) -> NDArray[np.int64]:
        """``[rows]``, as the next two."""
        slots: NDArray[np.int64] = np.repeat([slot for slot, _, _ in self.parts], self._lengths)
        return slots

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """Index of the key/value pair that each writes."""
        return np.concatenate([np.arange(positions.start, positions.stop) for _, positions, _ in self.parts])

    @cached_property
    def heard(self) -> NDArray[np.bool_]:
        """Whether hidden state and logits of each row are wanted."""
        heard = np.zeros(len(self), bool)
        heard[np.cumsum(self._lengths) - 1] = [heard for _, _, heard in self.parts]
        return heard

    def __len__(self) -> int:
        return sum(self._lengths)

    def __getitem__(self, index: int) -> Row:
        return Row(int(self.slot[index]), int(self.position[index]), heard=bool(self.heard[index]))

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel, or of its specification.

    Raises:
        ShapeError: no row or too many; a slot named twice; or prompts that are not ``wide``.
    """

    mode: Literal["decode", "prefill"]
    rows: tuple[Row, ...] | PackedRows
    wide: bool = False
    """Whether the wide kernel runs it: up to ``WIDE_STREAMS`` streams, or ``WIDE_ROWS`` positions of prompts, in
    order within each prompt."""
    stop_after: int = 0
    """Leave after this many phases; 0 runs to the end."""
    stall_phase: int = 0
    """Test: ``stall_block`` stops for good before this phase; 0: never."""
    stall_block: int = 0

    def __post_init__(self) -> None:
        most = ROWS if not self.wide else WIDE_STREAMS if self.mode == "decode" else WIDE_ROWS
        if not 1 <= len(self.rows) <= most:
            raise ShapeError(f"a launch has {len(self.rows)} rows, expected 1 to {most}")
        if self.mode == "prefill":
            if not self.wide:
                raise ShapeError("a prefill launch must be wide: the megakernel takes frames alone")
        elif len({row.slot for row in self.rows}) < len(self.rows):
            raise ShapeError("a decode launch names a slot twice")

    @property
    def merged(self) -> bool:
        """The predictor's first two positions share a pass, as two rows a stream."""
        return self.mode == "decode" and (self.wide or 2 * len(self.rows) <= ROWS)

    @property
    def finish(self) -> bool:
        """Whether the logits of any row are wanted."""
        return any(row.heard for row in self.rows)


@dataclass(frozen=True, slots=True)
class Phase:
    """Work of every block between awaiting the results of the phase before and publishing its own."""

    type: PhaseType
    stack: StackName
    position: int = 0
    """Predictor: the position of this pass (of its last row, in the merged pass)."""
    layer: int = 0
    picks: int | None = None
    """The code that every block chooses before it does anything else."""

    def __str__(self) -> str:
        where = (
            f"{self.stack} layer {self.layer} {self.type.kind}"
            if self.type in LAYER
            else f"{self.stack} {self.type.kind}"
        )
        return f"{where} of code {self.position}" if self.stack == "predictor" and self.type != PROJECT else where


def schedule(shape: KernelShape, launch: Launch) -> Iterator[Phase]:
    """All phases of a launch in order; the kernel counts them from 1."""
    if launch.mode == "decode":
        yield from _predictor(shape, launch)
        yield Phase(SUM, "talker", picks=shape.code_groups - 1)
    else:
        yield Phase(BEGIN, "talker")
    for layer in range(shape.talker.layers):
        for type_ in LAYER:
            if launch.mode == "prefill" and type_.kind == "attention":
                yield Phase(APPEND, "talker", layer=layer)
            yield Phase(type_, "talker", layer=layer)
            if type_.kind == "attention" and launch.wide and any(row.position >= CHUNK for row in launch.rows):
                yield Phase(COMBINE, "talker", layer=layer)
    if launch.mode == "decode" or launch.finish:
        yield Phase(HEAD, "talker")


def _predictor(shape: KernelShape, launch: Launch) -> Iterator[Phase]:
    picks: int | None = None if launch.wide else 0
    if shape.projects and not launch.wide:
        yield Phase(PROJECT, "predictor", picks=picks)
        picks = None
    for position in range(1 if launch.merged else 0, shape.code_groups):
        if launch.wide:
            yield Phase(BEGIN, "predictor", position, picks=position - 1)
            if shape.projects and position == 1:
                yield Phase(PROJECT, "predictor")
        for layer in range(shape.predictor.layers):
            for type_ in LAYER:
                yield Phase(type_, "predictor", position, layer, picks)
                picks = None
        if position > 0:
            yield Phase(HEAD, "predictor", position)
            picks = None if launch.wide else position

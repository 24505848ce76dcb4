"""Sizes of one compiled kernel, and the rules they must meet. ``csrc/config.cuh`` asserts the same rules."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from megatalker_kernels import constants, phases
from megatalker_kernels.constants import (
    CHUNK,
    GROUP_TILES,
    KBLOCK,
    OPERAND,
    PAGE,
    PHASE_BITS,
    ROWS,
    SUPPRESSED,
    THREADS,
    TILE,
    WARPS,
    WEIGHT,
    WIDE_STREAMS,
)
from megatalker_kernels.errors import ShapeError
from megatalker_kernels.phases import PhaseType, StackName

STAGE_COLUMNS = (1024, 512)
"""Columns of two tiles that a stage of the ring may hold: the first number that fits is taken."""
SMALL_THINGS = 4096
"""Bytes of shared memory for data whose size does not depend on the model."""
WIDE_SMALL_THINGS = 8192
"""Bytes of shared memory for data of the wide kernel whose size does not depend on the model."""
WIDE_STREAM_THINGS = 192
"""Bytes of shared memory of the wide kernel for each stream whose codes a block chooses."""
ENOUGH_STAGES = 4
"""Depth of the ring that is worth more than room for a matrix's whole operand."""
MAX_CHOICES = 4096
REGISTERS = 65536 // 4 // (-(-THREADS // 128) * 32) // 8 * 8
"""Registers of a thread if one block fits: a quarter of a multiprocessor has its own registers, and 3 of 9 warps."""

SHARED_MEMORY = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""KiB of shared memory that one block may use, by compute capability (major * 10 + minor)."""


@dataclass(frozen=True, slots=True)
class StackShape:
    """One transformer: the talker, or the code predictor."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def attention(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def gate_up(self) -> int:
        return 2 * self.intermediate

    @property
    def norms(self) -> int:
        """Norm weights of one layer: input, q, k, post-attention."""
        return 2 * self.hidden + 2 * self.head_dim

    @property
    def macro(self) -> str:
        return ",".join(str(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True, slots=True)
class KernelShape:
    """Everything a kernel is compiled for. Make one with :meth:`fit`."""

    talker: StackShape
    predictor: StackShape
    code_groups: int
    max_pages: int
    """Key/value pages of one stream at most."""
    blocks: int
    stages: int
    """Depth of the ring in shared memory."""
    stage_columns: int
    operand_columns: int
    """Columns of the activations that a block holds at once for ``ROWS`` rows, more for fewer; it brings wider ones
    again for each pair of tiles."""
    in_flight: int
    """Copies into the ring requested and not yet landed, for each block."""

    @classmethod
    def fit(
        cls,
        talker: StackShape,
        predictor: StackShape,
        *,
        code_groups: int,
        max_positions: int,
        processors: int,
        capability: int,
        in_flight: int = 1,
    ) -> "KernelShape":
        """The shape for a device.

        Args:
            talker: sizes of the talker.
            predictor: sizes of the code predictor.
            code_groups: codes of one frame.
            max_positions: prompt rows plus frames of one stream, rounded up to whole pages.
            processors: the device's streaming multiprocessors; one block runs on each.
            capability: compute capability, such as 90.
            in_flight: see the field.

        Raises:
            ShapeError: a rule is not met; the message names it.
        """
        if capability not in SHARED_MEMORY:
            known = ", ".join(f"sm_{number}" for number in SHARED_MEMORY)
            raise ShapeError(f"the kernel does not know compute capability sm_{capability}; it supports {known}")
        chunks = -(-max_positions // PAGE)
        bare = cls(
            talker, predictor, code_groups, chunks, processors, 0, STAGE_COLUMNS[-1], 2 * STAGE_COLUMNS[-1], in_flight
        )
        reason = why_not(bare)
        if reason is not None:
            raise ShapeError(reason)
        limit = SHARED_MEMORY[capability] * 1024
        for shape, enough in bare._candidates():
            stages = (limit - shared_bytes(shape)) // (stage_bytes(shape) + 16)
            if stages >= enough:
                return replace(shape, stages=stages)
        raise ShapeError(
            f"a block of sm_{capability} has {limit // 1024} KiB of shared memory and needs "
            f"{shared_bytes(bare) // 1024} KiB in addition to the weights; "
            f"the rest does not hold {in_flight + 1} stages of {stage_bytes(bare) // 1024} KiB"
        )

    def _candidates(self) -> Iterator[tuple["KernelShape", int]]:
        """Ways to share the memory of a block, best first, each with the depth that the ring then needs."""
        for stage in STAGE_COLUMNS:
            residual = max(self.largest("hidden"), self.largest("attention"))
            yield replace(self, stage_columns=stage, operand_columns=-(-self.widest // stage) * stage), ENOUGH_STAGES
            yield (
                replace(self, stage_columns=stage, operand_columns=-(-residual // (2 * stage)) * 2 * stage),
                ENOUGH_STAGES,
            )
            yield replace(self, stage_columns=stage, operand_columns=2 * stage), self.in_flight + 1

    @property
    def projects(self) -> bool:
        """The predictor stands behind a projection of the talker's hidden state."""
        return self.talker.hidden != self.predictor.hidden

    @property
    def first_suppressed(self) -> int:
        return self.talker.vocab - SUPPRESSED

    @property
    def max_positions(self) -> int:
        return self.max_pages * PAGE

    @property
    def max_chunks(self) -> int:
        """Pieces of ``CHUNK`` positions that attention to the longest stream is cut into."""
        return -(-self.max_positions // CHUNK)

    @property
    def max_phases(self) -> int:
        """Phases of the longest launch, and one for its start."""
        layer, around = len(phases.LAYER), 1 + len((phases.PROJECT, phases.SUM, phases.HEAD))
        predictor, talker = self.predictor.layers * layer, self.talker.layers * layer
        few = self.code_groups * (predictor + len((phases.HEAD,))) + talker
        passes = self.code_groups - 1  # where the first two positions share one
        many = passes * (predictor + len((phases.BEGIN, phases.HEAD))) + talker
        many += self.talker.layers * len((phases.COMBINE,))
        return around + max(few, many)

    def largest(self, name: str) -> int:
        """The larger of both stacks' values of one size."""
        return int(max(getattr(self.talker, name), getattr(self.predictor, name)))

    @property
    def widest(self) -> int:
        """Columns of the widest matrix."""
        return max(self.largest("hidden"), self.largest("attention"), self.largest("intermediate"))

    @property
    def owned_tiles(self) -> int:
        """Tiles of the residual stream that one block owns at most."""
        return -(-self.largest("hidden") // TILE // self.blocks)

    def stack(self, name: StackName) -> StackShape:
        """One of the two."""
        return self.talker if name == "talker" else self.predictor

    def extent(self, phase: PhaseType, stack: StackName) -> tuple[int, int] | None:
        """Rows and columns of the matrix of a phase; ``None``: it has none."""
        if phase.rows is None or phase.columns is None:
            return None
        sizes = self.stack(stack)
        columns = self.talker.hidden if phase.columns == "talker_hidden" else getattr(sizes, phase.columns)
        return getattr(sizes, phase.rows), columns

    def macros(self) -> list[tuple[str, str]]:
        """Preprocessor definitions for the CUDA sources, constants and the table of phases among them."""
        values = {
            "STAGE_COLUMNS": self.stage_columns,
            "STAGE_BYTES": stage_bytes(self),
            "STAGES": self.stages,
            "IN_FLIGHT": self.in_flight,
            "OPERAND_COLUMNS": self.operand_columns,
            "OWNED_TILES": self.owned_tiles,
            "CODE_GROUPS": self.code_groups,
            "MAX_PAGES": self.max_pages,
            "MAX_CHUNKS": self.max_chunks,
            "MAX_PHASES": self.max_phases,
            "TALKER_SHAPE": self.talker.macro,
            "PREDICTOR_SHAPE": self.predictor.macro,
            "BLOCKS": self.blocks,
            "SHARED_BYTES": shared_bytes(self),
            "WIDE_ARENA_BYTES": (shared_bytes(self) - wide_small_bytes(self)) // 128 * 128,
            "EXTENTS": " ".join(self._extent_macros()),
        }
        return [(f"MT_{name}", str(value)) for name, value in (constants.macros() | phases.macros() | values).items()]

    def _extent_macros(self) -> Iterator[str]:
        names: tuple[StackName, ...] = ("talker", "predictor")
        for stack in names:
            for phase in phases.TABLE:
                extent = self.extent(phase, stack)
                if extent is not None:
                    yield f"EXTENT({stack.title()},{phase.kind.upper()},{extent[0]},{extent[1]})"


def why_not(shape: KernelShape) -> str | None:
    """The first rule that ``shape`` breaks, in words, or ``None``."""
    for name, stack in (("talker", shape.talker), ("code predictor", shape.predictor)):
        for holds, rule in _stack_rules(stack):
            if not holds:
                return f"the {name}'s {rule}"
    for holds, rule in _frame_rules(shape):
        if not holds:
            return rule
    return None


def _stack_rules(s: StackShape) -> Iterator[tuple[bool, str]]:
    yield s.layers >= 1, f"layer count is {s.layers}, expected at least 1"
    for name in ("hidden", "intermediate", "attention"):
        size = getattr(s, name)
        yield size > 0 and size % KBLOCK == 0, f"{name} size is {size}, expected a multiple of {KBLOCK}"
    yield s.head_dim in (32, 64, 128), f"head size is {s.head_dim}, expected 32, 64 or 128"
    yield s.kv_heads > 0 and s.heads % s.kv_heads == 0, f"{s.heads} heads do not divide by its {s.kv_heads} KV heads"
    queries = s.heads // s.kv_heads
    yield queries < WARPS, f"{queries} heads share a KV head, expected fewer than {WARPS}"
    yield s.vocab % TILE == 0, f"vocabulary has {s.vocab} ids, expected a multiple of {TILE}"


def _frame_rules(shape: KernelShape) -> Iterator[tuple[bool, str]]:
    talker, predictor = shape.talker, shape.predictor
    yield talker.vocab % 32 == 0, f"the talker's vocabulary has {talker.vocab} ids, expected a multiple of 32"
    yield (
        SUPPRESSED < talker.vocab <= SUPPRESSED + MAX_CHOICES,
        f"the talker's vocabulary has {talker.vocab} ids, expected {SUPPRESSED + 1} to {SUPPRESSED + MAX_CHOICES}",
    )
    yield predictor.vocab <= MAX_CHOICES, f"the predictor's vocabulary has {predictor.vocab} ids, at most {MAX_CHOICES}"
    yield (
        talker.hidden <= talker.vocab,
        f"the talker's hidden size {talker.hidden} exceeds its vocabulary of {talker.vocab}: "
        "a block that owns hidden rows must own logits",
    )
    yield 2 <= shape.code_groups <= 16, f"a frame has {shape.code_groups} codes, expected 2 to 16"
    yield (
        shape.max_phases <= 2**PHASE_BITS,
        f"a frame has up to {shape.max_phases} phases, more than the {2**PHASE_BITS} that the kernel can number",
    )
    yield shape.max_pages >= 1, "a stream needs at least one page"
    yield shape.blocks >= 1 and shape.in_flight >= 1, "blocks and in_flight must be at least 1"


def wide_small_bytes(shape: KernelShape) -> int:
    """Return the shared memory of a block of the wide kernel without its arena; ``csrc/wide_shared.cuh`` asserts that
    it is enough.
    """
    return WIDE_SMALL_THINGS + -(-WIDE_STREAMS // shape.blocks) * WIDE_STREAM_THINGS


def stage_bytes(shape: KernelShape) -> int:
    """Return the bytes of one stage of the ring."""
    return 2 * TILE * shape.stage_columns * WEIGHT.itemsize


def shared_bytes(shape: KernelShape) -> int:
    """Dynamic shared memory of one block of either kernel; ``csrc/shared.cuh`` asserts that ``Shared`` fits."""
    dim = shape.largest("head_dim")
    queries = max(stack.heads // stack.kv_heads for stack in (shape.talker, shape.predictor))
    choices = max(shape.first_suppressed + 1, shape.predictor.vocab)
    product = OPERAND.itemsize * shape.operand_columns * ROWS + 2 * 4 * WARPS * GROUP_TILES * ROWS * TILE
    attention = 2 * OPERAND.itemsize * dim * (queries + ROWS) + 2 * 4 * WARPS * queries * (dim + 2)
    sampler = 14 * choices + 4 * WARPS * 32 + 40 * WARPS
    constants = 4 * shape.largest("hidden") + 4 * ROWS * dim
    residual = 4 * shape.owned_tiles * ROWS * TILE
    size = (stage_bytes(shape) + 16) * shape.stages + max(product, attention, sampler) + constants + residual
    return -(-size // 128) * 128 + SMALL_THINGS

"""Constants that Python and CUDA share. Their home is here: the sources get each as a macro, ``ROWS`` as ``MT_ROWS``.

What a single kernel is compiled for is in :mod:`megatalker_kernels.shapes`, the table of phases in
:mod:`megatalker_kernels.phases`.
"""

from collections.abc import Iterable
from enum import IntEnum

import torch

ROWS = 8
"""Streams of one launch."""
WIDE_ROWS = 2048
"""Prompt positions of one wide launch, at most."""
WIDE_STREAMS = 512
"""Streams of one wide launch, at most."""
WARPS = 8
"""Warps of a block that compute: each takes its share of every dot product. One more warp fetches."""
THREADS = WARPS * 32 + 32
TILE = 8
"""Weight rows of one matrix tile."""
KBLOCK = 32
"""Columns of a weight fragment: one 16-byte load of each lane."""
GROUP_TILES = 6
"""Tiles whose sums are reduced across warps at once; two of them are multiplied together."""
PAGE = 64
"""Positions of one key/value page."""
CHUNK = WARPS * 16
"""Positions that one block attends to at once."""
CHUNK_STATS = 4
"""Floats behind the weighted sum of one chunk: its largest score, the sum of its weights, and two for alignment."""
QUAD = 4
"""Floats that are published together, in 16 bytes."""
SUPPRESSED = 1024
"""The talker's highest ids, never chosen as code 0 (end-of-speech excepted)."""
PHASE_BITS = 10
"""Bits of a tag that number the phase; the other bits number the launch."""

WEIGHT = torch.bfloat16
"""Type of matrices and embeddings. ``csrc/config.cuh`` has the same types under the names of CUDA."""
OPERAND = torch.bfloat16
"""Type of activations as operand of a product."""
STORED = torch.bfloat16
"""Type of keys and values in their pages."""

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
"""Numbers added to the two words of the key after each round."""
GUMBEL_ROWS = 384
"""Rows of the table of noise, for each half of its range: 24 octaves of 16 segments."""
GUMBEL_SEGMENT_BITS = 19
"""Bits of a float32 that say where in its segment a number lies."""
GUMBEL_BITS = 26
"""The table's unit is ``2**-GUMBEL_BITS``."""
DECAY_ROWS = 256
"""Rows of the table of ``exp(-x)``: eight segments for each unit of ``x``."""
DECAY_SEGMENT_BITS = 17
DECAY_STEP_BITS = 20
"""``x`` is counted in steps of ``2**-DECAY_STEP_BITS``."""


class LaunchMode(IntEnum):
    """Kind of the rows of a wide launch; the rows of other launches are always frames."""

    DECODE = 0
    PREFILL = 1


class Wait(IntEnum):
    """Reason of a wait that took too long."""

    RESULTS = 1
    RING = 2


class BarrierWord(IntEnum):
    """Words of the buffer ``barrier``."""

    ARRIVED = 0
    LEFT = 1
    ABORTED = 2
    REPORTED = 3
    PROGRESS = 4
    """Last phase that block 0 finished; one word more follows for each further block."""


class StatusWord(IntEnum):
    """Words of the buffer ``status``."""

    ABORTED = 0
    WAIT = 1
    PHASE = 2
    BLOCK = 3


NUMBERS = (
    *("ROWS", "WARPS", "THREADS", "TILE", "KBLOCK", "GROUP_TILES", "PAGE", "CHUNK", "CHUNK_STATS", "QUAD"),
    *("WIDE_STREAMS", "SUPPRESSED", "PHASE_BITS", "PHILOX_ROUNDS", "GUMBEL_ROWS", "GUMBEL_SEGMENT_BITS", "GUMBEL_BITS"),
    *("DECAY_ROWS", "DECAY_SEGMENT_BITS", "DECAY_STEP_BITS"),
)


def macros() -> dict[str, str]:
    """Preprocessor definitions by name, without the prefix ``MT_``."""
    enums = {"MODES": LaunchMode, "WAITS": Wait, "BARRIER_WORDS": BarrierWord, "STATUS_WORDS": StatusWord}
    pairs = {"PHILOX_MULTIPLIERS": PHILOX_MULTIPLIERS, "PHILOX_WEYL": PHILOX_WEYL}
    types = {"WEIGHT": WEIGHT, "OPERAND": OPERAND, "STORED": STORED}
    return (
        {name: str(globals()[name]) for name in NUMBERS}
        | {name: ",".join(f"{value:#x}u" for value in pair) for name, pair in pairs.items()}
        | {f"{name}_BYTES": str(dtype.itemsize) for name, dtype in types.items()}
        | {name: enumerators(members) for name, members in enums.items()}
    )


def enumerators(members: Iterable[IntEnum]) -> str:
    """The body of an enumeration in CUDA."""
    return ",".join(f"{member.name}={member.value}" for member in members)

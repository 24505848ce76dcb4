"""The executable specification of ``csrc/sampler.cuh``: one choice of one stream, in plain numpy, bit for bit."""

import numpy as np
from numpy.typing import NDArray

from megatalker_kernels.constants import (
    DECAY_ROWS,
    DECAY_SEGMENT_BITS,
    DECAY_STEP_BITS,
    GUMBEL_BITS,
    GUMBEL_ROWS,
    GUMBEL_SEGMENT_BITS,
    PHILOX_MULTIPLIERS,
    PHILOX_ROUNDS,
    PHILOX_WEYL,
)
from megatalker_kernels.params import Filter

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]


class Sampler:
    """Chooses codes with the tables of the sampling contract (int64 ``[768, 4]`` and ``[256, 4]``)."""

    def __init__(self, gumbel_table: Integers, decay_table: Integers) -> None:
        self._gumbel_table = gumbel_table
        self._decay_table = decay_table

    def choose(self, logits: Floats, filter_: Filter, key: tuple[int, int], codebook: int, frame: int) -> int:
        """The chosen id, the lowest among equals. ``-inf`` bars an id."""
        if not filter_.do_sample:
            return int(np.argmax(logits))
        scaled = logits / np.float32(filter_.temperature)
        kept = scaled >= np.sort(scaled)[-min(filter_.top_k, scaled.size)]
        if filter_.dropped >= 0:
            kept = self._heaviest(scaled, kept, filter_.dropped)
        scores = np.where(kept, scaled + self.gumbel(key, codebook, frame, logits.size), -np.inf)
        return int(np.argmax(scores))

    def _heaviest(self, scaled: Floats, kept: NDArray[np.bool_], dropped: float) -> NDArray[np.bool_]:
        rising = np.sort(scaled[kept])
        cumulative = np.cumsum(self._decay(rising[-1] - rising))
        first = np.argmax(cumulative.astype(np.float64) > dropped * np.float64(cumulative[-1]))
        return np.asarray(scaled >= rising[first])

    def _decay(self, distance: Floats) -> Integers:
        """``exp(-distance)`` in units of 2**-40."""
        farthest = np.float32((DECAY_ROWS << DECAY_SEGMENT_BITS) / 2**DECAY_STEP_BITS - 0.5)
        steps = (np.minimum(distance, farthest) * np.float32(2**DECAY_STEP_BITS)).astype(np.int64)
        return _cubic(self._decay_table, steps, DECAY_SEGMENT_BITS)

    def gumbel(self, key: tuple[int, int], codebook: int, frame: int, size: int) -> Floats:
        """The noise of the ids 0 ... size - 1."""
        blocks = np.arange(-(-size // 4), dtype=np.uint64)
        words = philox(np.stack([blocks, *(np.full_like(blocks, word) for word in (codebook, frame, 0))]), key)
        numerator = (words.T.reshape(-1)[:size] >> np.uint64(8)).astype(np.int64) * 2 + 1
        upper = numerator > 2**24
        nearer = np.where(upper, 2**25 - numerator, numerator)
        bits = nearer.astype(np.float32).view(np.int32).astype(np.int64)
        one = np.float32(1).view(np.int32)  # the table begins there
        value = _cubic(
            self._gumbel_table, bits - one + (GUMBEL_ROWS << GUMBEL_SEGMENT_BITS) * upper, GUMBEL_SEGMENT_BITS
        )
        return value.astype(np.float32) * np.float32(2.0**-GUMBEL_BITS)


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10 of counters ``[4, n]``."""
    low = np.uint64(0xFFFFFFFF)
    a, b, c, d = counter
    for index in range(PHILOX_ROUNDS):
        first, second = ((word + index * step) & int(low) for word, step in zip(key, PHILOX_WEYL, strict=True))
        left, right = (word * np.uint64(factor) for word, factor in zip((a, c), PHILOX_MULTIPLIERS, strict=True))
        a, b, c, d = (
            (right >> np.uint64(32)) ^ b ^ np.uint64(first),
            right & low,
            (left >> np.uint64(32)) ^ d ^ np.uint64(second),
            left & low,
        )
    return np.stack((a, b, c, d))


def _cubic(table: Integers, place: Integers, bits: int) -> Integers:
    """The table's polynomial at ``place``, whose low bits say where in its row that is."""
    rows, position = table[place >> bits], place & (1 << bits) - 1
    value = rows[..., 3] * position >> bits
    value = (value + rows[..., 2]) * position >> bits
    value = (value + rows[..., 1]) * position >> bits
    return np.asarray(value + rows[..., 0])

"""Logarithms and exponentials in integer arithmetic: piecewise cubics with fixed-point coefficients.

A floating-point polynomial gives different last bits where a compiler fuses multiply and add, and the mathematical
libraries of CPU, GPU and numpy differ too. Integers give the same bits everywhere, so every backend can reproduce
them; a kernel needs a few kilobytes of table, three multiplications and shifts.

A table holds one row ``(c0, c1, c2, c3)`` for each segment. With ``x`` the position inside the segment, an integer of
``position_bits`` bits, the value is ``((c3·x >> bits) + c2)·x >> bits ...`` down to ``c0`` (:func:`evaluate`), all in
64-bit integers with arithmetic shifts. No product reaches 2**62.
"""

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Row = tuple[int, int, int, int]
Integers = TypeVar("Integers", "Tensor", "np.ndarray[tuple[int, ...], np.dtype[np.int64]]")


GUMBEL_POSITION_BITS = 19
GUMBEL_FRACTION_BITS = 26
DECAY_POSITION_BITS = 17
DECAY_FRACTION_BITS = 40
"""``POSITION``: bits of the position inside a segment. ``FRACTION``: values are integers in units of 2**-FRACTION."""


def evaluate(coefficients: Integers, position: Integers, position_bits: int) -> Integers:
    """Values at ``position`` (int64, any shape) with the rows ``coefficients`` (int64 ``[..., 4]``)."""
    value = coefficients[..., 3] * position >> position_bits
    value = (value + coefficients[..., 2]) * position >> position_bits
    value = (value + coefficients[..., 1]) * position >> position_bits
    return value + coefficients[..., 0]


@cache
def gumbel_table() -> tuple[Row, ...]:
    """``-ln(-ln u)`` for ``u = n / 2**25``, n odd, in units of 2**-26; 768 rows.

    Let ``a = n`` for ``n < 2**24`` and ``2**25 - n`` otherwise; ``bits`` is the bit pattern of ``a`` as a float32. The
    row is ``(bits >> 19) - 127 * 16``, plus 384 in the upper half; the position is ``bits & (2**19 - 1)``. In words:
    24 octaves of the distance to the nearer end of (0, 1), 16 segments an octave. Error below 1e-7.
    """
    rows: list[Row] = []
    with localcontext(Context(prec=30)):
        one, scale = Decimal(1), Decimal(2) ** -25

        def lower(a: Decimal) -> Decimal:
            return -(-(a * scale).ln()).ln()

        def upper(a: Decimal) -> Decimal:
            return -(-(one - a * scale).ln()).ln()

        for function in (lower, upper):
            for octave in range(24):
                for segment in range(16):
                    width = Decimal(2) ** octave / 16
                    rows.append(_cubic(function, (16 + segment) * width, width, GUMBEL_FRACTION_BITS))
    return tuple(rows)


@cache
def decay_table() -> tuple[Row, ...]:
    """``exp(-d)`` for ``d = q / 2**20``, 0 <= d < 32, in units of 2**-40; 256 rows.

    The row is ``q >> 17``, the position ``q & (2**17 - 1)``. Error below 1.4e-7 of the value, plus 4 units.
    """
    with localcontext(Context(prec=30)):
        width = Decimal(1) / 8
        return tuple(_cubic(lambda d: (-d).exp(), row * width, width, DECAY_FRACTION_BITS) for row in range(256))


def _cubic(function: Callable[[Decimal], Decimal], start: Decimal, width: Decimal, fraction_bits: int) -> Row:
    """The cubic through the function at 0, 1/3, 2/3 and 1 of a segment, in powers of the position in [0, 1)."""
    y0, y1, y2, y3 = (function(start + width * third / 3) for third in range(4))
    exact = (
        y0,
        (-11 * y0 + 18 * y1 - 9 * y2 + 2 * y3) / 2,
        (18 * y0 - 45 * y1 + 36 * y2 - 9 * y3) / 2,
        (-9 * y0 + 27 * y1 - 27 * y2 + 9 * y3) / 2,
    )
    c0, c1, c2, c3 = (int((value * 2**fraction_bits).to_integral_value()) for value in exact)
    return c0, c1, c2, c3

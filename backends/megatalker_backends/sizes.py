"""Sizes that steps are prepared for: every power of two below a limit, and the limit."""

from collections.abc import Iterable, Sequence


def sizes_up_to(limit: int) -> list[int]:
    """Return every power of two below ``limit``, and ``limit``, ascending."""
    return [*(1 << power for power in range((limit - 1).bit_length())), limit]


def next_size(sizes: Iterable[int], wanted: int) -> int:
    """Return the smallest of ascending ``sizes`` that holds ``wanted``."""
    return next(size for size in sizes if size >= wanted)


def split_into(sizes: Sequence[int], total: int) -> list[int]:
    """Return some of ascending ``sizes``, largest first, that together make ``total``."""
    parts: list[int] = []
    for size in reversed(sizes):
        count, total = divmod(total, size)
        parts += [size] * count
    return parts

"""Which part of a product one block computes."""

from dataclasses import KW_ONLY, dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of ``Tile`` in ``csrc/codec/product.cuh``."""

    rows: int
    columns: int
    high: int
    wide: int
    deep: int
    depth: int
    stages: int
    _: KW_ONLY
    together: int
    """Blocks for each processor up to which splitting sums pays."""
    least_stages: int
    """Of a share."""
    most_shares: int

    @property
    def kernel(self) -> str:
        return f"product_{self.rows}x{self.columns}_{self.threads}"

    @property
    def threads(self) -> int:
        return 32 * self.high * self.wide * self.deep

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * (self.rows + self.columns) * self.depth
        return 4 * max(ring, self.deep * self.rows * (self.columns + 5))

    @property
    def macro(self) -> str:
        sizes = (self.rows, self.columns, self.high, self.wide, self.deep, self.depth, self.stages)
        return f"PRODUCT({', '.join(map(str, (self.kernel, *sizes, self.shared_bytes)))})"

    def count(self, rows: int, columns: int) -> int:
        """Tiles of a product of that size."""
        return ceil(rows / self.rows) * ceil(columns / self.columns)

    def stages_of(self, width: int) -> int:
        """Stages that windows of ``width`` numbers take."""
        return ceil(width / self.depth)

    def shares_of(self, width: int) -> int:
        """Shares that windows of ``width`` numbers may be split into."""
        return max(1, min(self.stages_of(width) // self.least_stages, self.most_shares))


FEW = Tile(8, 16, 1, 1, 8, 128, 6, together=3, least_stages=2, most_shares=4)
SMALL = Tile(32, 32, 2, 1, 4, 64, 6, together=2, least_stages=4, most_shares=8)
NARROW = Tile(128, 16, 8, 1, 1, 64, 2, together=1, least_stages=1, most_shares=1)
MIDDLE = Tile(32, 96, 2, 2, 2, 32, 4, together=2, least_stages=8, most_shares=16)
LARGE = Tile(64, 96, 4, 2, 1, 32, 4, together=4, least_stages=14, most_shares=3)
LARGE_FOR_LONG_SUMS = Tile(64, 96, 2, 2, 1, 32, 4, together=4, least_stages=14, most_shares=3)
TILES = (FEW, SMALL, NARROW, MIDDLE, LARGE, LARGE_FOR_LONG_SUMS)
FEW_ROWS = 8
LONG = 768
"""Columns of a window from which larger parts of a warp's own pay."""
ENOUGH = 1.75
"""Blocks for each processor that a larger tile must give, to be worth its better use of what it loads."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is divided among blocks."""

    tile: Tile
    shares: int


def choose_tiling(rows: int, columns: int, width: int, processors: int, *, whole: bool) -> Tiling:
    """Choose tiles, and into how many shares of their width the sums are split (one if ``whole``).

    The rule and its numbers are the best of ``megatalker bench codec-tiles`` on an H200, roughly: the largest tile that
    keeps the device busy.
    """

    def most_shares(tile: Tile) -> int:
        return 1 if whole else tile.shares_of(width)

    def keeps_busy(tile: Tile) -> bool:
        return columns >= tile.columns and tile.count(rows, columns) * most_shares(tile) >= ENOUGH * processors

    if rows <= FEW_ROWS:
        tile = FEW
    elif columns <= NARROW.columns and NARROW.count(rows, columns) >= processors:
        tile = NARROW
    else:
        large = LARGE_FOR_LONG_SUMS if width >= LONG else LARGE
        tile = next(filter(keeps_busy, (large, MIDDLE)), SMALL)
    room = max(1, tile.together * processors // tile.count(rows, columns))
    return Tiling(tile, min(room, most_shares(tile)))

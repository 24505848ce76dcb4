"""Which piece of a product one block computes."""

from dataclasses import dataclass
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

    @property
    def kernel(self) -> str:
        return f"product_{self.rows}x{self.columns}"

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
        return f"PRODUCT({', '.join(map(str, sizes))})"

    def count(self, rows: int, columns: int) -> int:
        """Tiles of a product of that size."""
        return ceil(rows / self.rows) * ceil(columns / self.columns)

    def stages_of(self, width: int) -> int:
        """Stages that windows of ``width`` numbers take."""
        return ceil(width / self.depth)


TILES = (
    Tile(8, 16, 1, 1, 4, 128, 6),
    Tile(32, 32, 1, 1, 4, 64, 6),
    Tile(64, 96, 2, 2, 1, 32, 4),
    Tile(128, 96, 4, 2, 1, 32, 3),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is dealt to blocks."""

    tile: Tile
    shares: int


def cut(rows: int, columns: int, width: int, processors: int, *, whole: bool) -> Cut:
    """Choose tiles, and into how many shares of their width the sums are split (one if ``whole``)."""
    tile = TILES[0] if rows <= 8 else TILES[1] if rows <= 64 else TILES[2] if rows <= 2560 else TILES[3]
    tiles, stages = tile.count(rows, columns), tile.stages_of(width)
    shares = 1 if whole else max(1, min(processors // tiles, stages // (2 * tile.stages), 8))
    return Cut(tile, shares)

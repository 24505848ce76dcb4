"""Tiles: the part of a product that one block computes."""

from dataclasses import KW_ONLY, dataclass
from math import ceil

from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import WARPGROUP_COLUMNS


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of ``Tile`` in ``csrc/codec/warps.cuh``."""

    rows: int
    columns: int
    high: int
    wide: int
    deep: int
    depth: int
    stages: int
    _: KW_ONLY
    resident: int
    """Blocks that a processor shall be able to run at once."""
    together: int
    """Blocks for each processor up to which splitting sums pays."""
    least_stages: int
    """Stages of a share, at least."""
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
        sizes = (self.rows, self.columns, self.high, self.wide, self.deep, self.depth, self.stages, self.resident)
        return f"PRODUCT({', '.join(map(str, (self.kernel, *sizes, self.shared_bytes)))})"

    def count(self, rows: int, columns: int) -> int:
        """Tiles of a product of that size."""
        return ceil(rows / self.rows) * ceil(columns / self.columns)

    def stages_of(self, taps: int, words: int) -> int:
        """Return the number of stages that windows of ``taps`` rows take."""
        return ceil(taps * words / self.depth)

    def shares_of(self, taps: int, words: int) -> int:
        """Shares that such windows may be split into."""
        return max(1, min(self.stages_of(taps, words) // self.least_stages, self.most_shares))


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """Sizes of ``WarpgroupTile`` in ``csrc/codec/warpgroup.cuh``."""

    rows: int
    depth: int
    """Words of one tap in one stage."""
    stages: int
    resident: int
    """Blocks that a processor runs at once."""

    columns = WARPGROUP_COLUMNS
    threads = 128

    @property
    def kernel(self) -> str:
        return f"warpgroup_product_{self.rows}x{self.depth}x{self.stages}_{self.resident}"

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.depth // 4 * (self.rows + 1 + self.columns) * 4
        return 4 * max(ring, self.rows * (self.columns + 5))

    @property
    def macro(self) -> str:
        sizes = (self.rows, self.depth, self.stages, self.resident, self.shared_bytes)
        return f"WARPGROUP_PRODUCT({self.kernel}, {', '.join(map(str, sizes))})"

    def count(self, rows: int, columns: int) -> int:
        """Tiles of a product of that size."""
        return ceil(rows / self.rows) * ceil(columns / self.columns)

    def stages_of(self, taps: int, words: int) -> int:
        """Return the number of stages that windows of ``taps`` rows take."""
        return taps * ceil(words / self.depth)


FEW = Tile(8, 16, 1, 1, 8, 128, 6, resident=3, together=3, least_stages=2, most_shares=4)
SMALL = Tile(32, 32, 2, 1, 4, 64, 6, resident=2, together=2, least_stages=4, most_shares=8)
NARROW = Tile(128, 16, 8, 1, 1, 64, 2, resident=1, together=1, least_stages=1, most_shares=1)
MIDDLE = Tile(32, 96, 2, 2, 2, 32, 4, resident=2, together=2, least_stages=8, most_shares=16)
LARGE = Tile(64, 96, 4, 2, 1, 32, 4, resident=2, together=4, least_stages=14, most_shares=3)
LARGE_FOR_LONG_SUMS = Tile(64, 96, 2, 2, 1, 32, 4, resident=2, together=4, least_stages=14, most_shares=3)
TILES = (FEW, SMALL, NARROW, MIDDLE, LARGE, LARGE_FOR_LONG_SUMS)
WARPGROUP = WarpgroupTile(128, 32, 3, resident=2)
LOW = WarpgroupTile(64, 32, 3, resident=3)
ROUNDS = WarpgroupTile(128, 32, 2, resident=3)
"""Taken where each processor runs several rounds of tiles."""
SHALLOW = WarpgroupTile(128, 16, 4, resident=3)
"""Taken for rows of few words, which would leave half of a deeper stage empty."""
WARPGROUP_TILES: dict[Numbers, tuple[WarpgroupTile, ...]] = {
    Numbers.HALVES: (WARPGROUP,),
    Numbers.HALF: (WARPGROUP, LOW, ROUNDS, SHALLOW),
    Numbers.TENSORFLOATS: (),
}
"""For compute capability 9.0."""
FEW_ROWS = 8
LONG = 768
"""Columns of a window from which larger parts of a warp's own pay."""
ENOUGH = 1.75
"""Blocks for each processor that a larger tile must give, to be worth its better use of what it loads."""
MUCH_ROUNDED = 2**27
"""Rows times columns times words of a window from which warpgroups pay for numbers of one float16."""
LEAST_STAGES = 16
"""Stages of a share of such numbers, at least."""
ENOUGH_TILES = 0.6
"""Tiles per processor from which warpgroups pay; in products of more than :data:`MUCH` multiplications fewer do."""
MUCH = 2**29
MOST_SHARES = 8
"""Shares of a warpgroup's tile, at most."""
ALONE = 0.72
"""Time of a stage on a processor that runs one block, relative to a stage on a processor that runs two."""
BEGIN = 8.0
"""Time of a block before and after its stages, in the unit of :data:`ALONE`."""
SPLIT = 10.0
"""Further time of a block that finishes sums of several blocks, in the unit of :data:`ALONE`."""
SPLIT_NUMBER = 2.6e-6
"""Time for each number handed from block to block, in the unit of :data:`ALONE`."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is divided among blocks."""

    tile: Tile | WarpgroupTile
    shares: int


def choose_tiling(
    rows: int, columns: int, taps: int, words: int, processors: int, *, whole: bool, warpgroups: Numbers | None
) -> Tiling:
    """Choose tiles, and into how many shares of their width the sums are split (one if ``whole``).

    The rule and its numbers are the best of ``megatalker bench codec-tiles`` on an H200, roughly: a warpgroup's tiles
    (of ``warpgroups``, if it is given) or else the largest tile that keeps the device busy.
    """
    if warpgroups is not None and rows >= WARPGROUP.rows and columns >= WARPGROUP.columns:
        rule = _rounded_tiling if warpgroups is Numbers.HALF else _warpgroup_tiling
        tiling = rule(rows, columns, taps, words, processors)
        if tiling is not None:
            return tiling

    def most_shares(tile: Tile) -> int:
        return 1 if whole else tile.shares_of(taps, words)

    def keeps_busy(tile: Tile) -> bool:
        return columns >= tile.columns and tile.count(rows, columns) * most_shares(tile) >= ENOUGH * processors

    if rows <= FEW_ROWS:
        tile = FEW
    elif columns <= NARROW.columns and NARROW.count(rows, columns) >= processors:
        tile = NARROW
    else:
        large = LARGE_FOR_LONG_SUMS if taps * words >= LONG else LARGE
        tile = next(filter(keeps_busy, (large, MIDDLE)), SMALL)
    room = max(1, tile.together * processors // tile.count(rows, columns))
    return Tiling(tile, min(room, most_shares(tile)))


def warpgroup_depth(numbers: Numbers, words: int) -> int:
    """Words of a tap of that many which one stage takes."""
    shallow = numbers is Numbers.HALF and words % WARPGROUP.depth
    return SHALLOW.depth if shallow else WARPGROUP.depth


def _rounded_tiling(rows: int, columns: int, taps: int, words: int, processors: int) -> Tiling | None:
    """Return the tiling for warpgroups of one float16; ``None`` if they do not pay."""
    if rows * columns * taps * words < MUCH_ROUNDED:
        return None
    if warpgroup_depth(Numbers.HALF, words) == SHALLOW.depth:
        return Tiling(SHALLOW, 1)
    low, room = LOW.count(rows, columns), LOW.resident * processors
    if low <= room:
        return Tiling(LOW, max(1, min(room // low, LOW.stages_of(taps, words) // LEAST_STAGES)))
    one_round = WARPGROUP.count(rows, columns) <= WARPGROUP.resident * processors
    return Tiling(WARPGROUP if one_round else ROUNDS, 1)


def _warpgroup_tiling(rows: int, columns: int, taps: int, words: int, processors: int) -> Tiling | None:
    """Return the tiling for warpgroups of two float16 that takes the least time; ``None`` if they do not pay."""
    tiles, stages = WARPGROUP.count(rows, columns), WARPGROUP.stages_of(taps, words)
    work = rows * columns * stages * WARPGROUP.depth
    if tiles < ENOUGH_TILES * processors and work <= MUCH:
        return None

    def cost(shares: int) -> float:
        rounds, rest = divmod(tiles * shares, WARPGROUP.resident * processors)
        last = 0.0 if rest == 0 else ALONE if rest <= processors else 1.0
        split = 0.0 if shares == 1 else SPLIT + SPLIT_NUMBER * shares * rows * columns
        return (rounds + last) * stages / shares + BEGIN * (rounds + (rest > 0)) + split

    return Tiling(WARPGROUP, min(range(1, min(stages, MOST_SHARES) + 1), key=cost))

// Products of many rows: ways to divide them among blocks, and which one is taken.
#pragma once
#include "wide_lone_warps.cuh"
#include "wide_warpgroups.cuh"

template <class D>
__device__ __forceinline__ bool multiply_parts(PhaseKind kind, int layer, int rows) {
  WideShared& s = wide_shared();
  WidePart part(kind, layer, rows);
  const int down = (part.extent.tiles + D::TILES - 1) / D::TILES, parts = down * ((rows + D::ROWS_ - 1) / D::ROWS_);
#pragma unroll 1
  for (int number = blockIdx.x; number < parts; number += BLOCKS, part.first = false) {
    part.tile = number % down * D::TILES, part.row = number / down * D::ROWS_;
    if (!part.first) {
      consumer_sync();
      if (own_thread() < D::TILES)
        s.further_tile[own_thread()] = find_tile(s.pass.talker, kind, min(part.tile + own_thread(), part.extent.tiles - 1));
      consumer_sync();
    }
    if constexpr (D::BY_WARPGROUPS) {
      if (!multiply_by_warpgroups<D>(part)) return false;
    } else if constexpr (D::WHOLE_UNITS) {
      if (!multiply_by_lone_warps<D>(part)) return false;
    } else {
      if (!multiply_by_warps<D>(part)) return false;
    }
  }
  return int(blockIdx.x) < parts || proceed();
}

template <class D>
__device__ __noinline__ bool multiply_apart(PhaseKind kind, int layer, int rows) {
  return multiply_parts<D>(kind, layer, rows);
}

// The code of warpgroups is where it is called, that of others takes no registers there.
template <class D>
__device__ __forceinline__ bool multiply(PhaseKind kind, int layer, int rows) {
  if constexpr (D::BY_WARPGROUPS) {
    return multiply_parts<D>(kind, layer, rows);
  } else {
    return multiply_apart<D>(kind, layer, rows);
  }
}

constexpr int NEVER = 0x7fffffff;

template <class... Each>
struct Divisions {
  template <class D>
  __device__ static int cost(PhaseKind kind, const Extent& extent, int rows) {
    const bool adds = kind == OUT || kind == DOWN || kind == PROJECT;  // these count squares of whole column blocks
    if (adds && D::COLUMNS % KBLOCK || D::WHOLE_UNITS && extent.columns / KBLOCK % OF_UNIT) return NEVER;
    const int parts = (extent.tiles + D::TILES - 1) / D::TILES * ((rows + D::ROWS_ - 1) / D::ROWS_);
    return (parts + BLOCKS - 1) / BLOCKS * (D::FIXED * 1024 + D::SLOPE * extent.columns);
  }

  // The number of the one that costs least.
  __device__ static int best(PhaseKind kind, const Sizes& sizes, int rows) {
    const Extent extent(kind, sizes);
    int least = NEVER, number = 0, chosen = 0;
    const auto consider = [&](int cost) {
      if (cost < least) least = cost, chosen = number;
      ++number;
    };
    (consider(cost<Each>(kind, extent, rows)), ...);
    return chosen;
  }

  // First tile of this block in division `chosen`.
  __device__ static int first_tile(int chosen, const Extent& extent) {
    int tile = 0, number = 0;
    ((number++ == chosen && (tile = blockIdx.x % ((extent.tiles + Each::TILES - 1) / Each::TILES) * Each::TILES, true)) || ...);
    return tile;
  }

  __device__ __forceinline__ static bool multiply_by(int chosen, PhaseKind kind, int layer, int rows) {
    bool goes_on = true;
    int number = 0;
    ((number++ == chosen && (goes_on = multiply<Each>(kind, layer, rows), true)) || ...);
    return goes_on;
  }
};

// Behind the sizes of a division: what a part costs, and each 1024 columns of it, in tenths of a microsecond, measured on an H200.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
using Division = Divisions<LoneWarpDivision<1, 4, 26, 5>,       // 32 x 16: weights x rows
                           LoneWarpDivision<2, 4, 23, 8>,       // 32 x 32
                           WarpDivision<1, 1, 2, 4, 24, 12>,    // the same, of any number of columns
                           WarpgroupDivision<1, 6, 32, 15>,     // 48 x 64
                           LoneWarpDivision<4, 4, 35, 16>,      // 32 x 64
                           WarpgroupDivision<1, 12, 14, 48>,    // 96 x 64
                           WarpgroupDivision<1, 8, 25, 38>,     // 64 x 64
                           WarpgroupDivision<2, 8, 24, 60>,     // 64 x 128
                           WarpgroupDivision<2, 12, 20, 70>>;   // 96 x 128
#else
using Division = Divisions<WarpDivision<1, 1, 2, 4, 0, 30>,                                           // 32 x 32: weights x rows
                           WarpDivision<1, 2, 2, 4, 0, 55>,                                           // 32 x 64
                           WarpDivision<1, 2, 2, WARPS * 64 * 52 * 4 <= ARENA_BYTES ? 6 : 4, 0, 70>,  // 48 x 64, where the sums fit
                           WarpDivision<2, 4, 2, 4, 0, 140>,                                          // 64 x 128
                           WarpDivision<2, 4, 2, 6, 0, 190>>;                                         // 96 x 128
#endif

// Chooses divisions for all passes of a launch.
__device__ inline void choose_divisions() {
  WideShared& s = wide_shared();
  const auto sizes = [](int pass) { return pass == OF_TALKER ? Sizes::of<Talker>() : Sizes::of<Predictor>(); };
  const int thread = own_thread();
  if (thread < PASS_KINDS * KINDS) {
    const int pass = thread / KINDS, which = thread % KINDS;
    const bool pairs = pass == OF_PAIRS && which != HEAD && which != PROJECT;
    const int rows = pass == OF_TALKER && which == HEAD ? s.wide.heards : s.launch.rows << pairs;
    s.division[pass][which] = Division::best(PhaseKind(which), sizes(pass), rows);
  }
  consumer_sync();
#pragma unroll 1
  for (int i = thread; i < PASS_KINDS * KINDS * MOST_TILES; i += CONSUMERS) {
    const int pass = i / MOST_TILES / KINDS, which = i / MOST_TILES % KINDS, own = i % MOST_TILES;
    const Extent extent(PhaseKind(which), sizes(pass));
    const int number = Division::first_tile(s.division[pass][which], extent) + own;
    s.tile[pass][which][own] = find_tile(pass == OF_TALKER, PhaseKind(which), min(number, extent.tiles - 1));
  }
}

__device__ __forceinline__ bool product_wide(PhaseKind kind, int layer, int rows) {
  const WideShared& s = wide_shared();
  return Division::multiply_by(s.division[s.pass.kind][kind], kind, layer, rows);
}

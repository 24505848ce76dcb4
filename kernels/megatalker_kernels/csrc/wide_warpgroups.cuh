// Products of many rows by warpgroups (sm_90a): four warps multiply 64 rows and some tiles together. Tensor cores read both operands
// from shared memory, and bulk copies bring them there, so that threads have little else to do than to wait.
#pragma once
#include "wide_copy.cuh"
#include "wide_tiles.cuh"

// `ACROSS` warpgroups lie along the rows, each with 64 of them; if that is one, each has half of the tiles.
template <int ACROSS_, int TILES_, int FIXED_, int SLOPE_>
struct WarpgroupDivision {
  static constexpr int ACROSS = ACROSS_, TILES = TILES_, FIXED = FIXED_, SLOPE = SLOPE_;
  static constexpr int DOWN = WARPS / 4 / ACROSS, EACH = TILES / DOWN;  // tiles of a warpgroup
  static constexpr int COLUMNS = TILES * TILE, ROWS_ = ACROSS * 64, EIGHTS = ROWS_ / TILE;
  // A stage is the column blocks that a unit has of a chain: first weights, tile by tile, then rows, block by block.
  static constexpr int STAGE_VECTORS = OF_CHAIN * (TILES + EIGHTS) * VECTORS;
  static constexpr int DEPTH = clamped(ARENA_BYTES / 16 / STAGE_VECTORS, 0, MOST_STAGES);
  static constexpr int COPIES = TILES + OF_CHAIN;  // of a stage
  using Shares = WideShares<ROWS_, COLUMNS, 1>;
  static_assert(DEPTH >= 2 && ROWS_ <= MOST_ROWS && COPIES <= 32 * WARPS && EACH * DOWN == TILES);
  static constexpr bool BY_WARPGROUPS = true, WHOLE_UNITS = true;
};

// The next stage.
struct ChainStage {
  int slot = 0, chain = 0, unit = 0;

  __device__ void advance(const WidePart& x, int depth) {
    if (++slot == depth) slot = 0;
    if (++unit == x.units) unit = 0, ++chain;
  }
};

// A lane's copies of each stage: the first lanes of all warps share the work.
template <class D>
struct WarpgroupCopy {
  const char* source;
  int of_unit, of_chain;  // bytes from one to the next
  int bytes = 0, all;     // its own, and of the whole stage
  int target;             // vector of the stage
  bool weights;           // not rows

  __device__ explicit WarpgroupCopy(const WidePart& x) {
    const int number = (own_thread() & 31) * WARPS + (own_thread() >> 5), apart = x.apart();
    const int eights = x.eights(D::EIGHTS);
    all = OF_CHAIN * (D::TILES + eights) * FRAGMENT_BYTES;
    weights = number < D::TILES;
    if (weights) {
      const WideTile& tile = x.own_tile(number);
      bytes = OF_CHAIN * FRAGMENT_BYTES;
      of_unit = OF_UNIT * FRAGMENT_BYTES * (tile.of_pair ? 2 : 1), of_chain = bytes;
      source = x.weights(tile) + (tile.of_pair ? tile.of_pair - 1 : 0) * OF_UNIT * FRAGMENT_BYTES;
      target = number * OF_CHAIN * VECTORS;
    } else if (number < D::COPIES) {
      const int step = number - D::TILES;
      bytes = eights * FRAGMENT_BYTES;
      of_unit = OF_UNIT * apart, of_chain = apart;
      source = x.operand + step * WARPS * apart + x.row / TILE * FRAGMENT_BYTES;
      target = (D::TILES * OF_CHAIN + step * D::EIGHTS) * VECTORS;
    }
  }

  // A stage will come.
  __device__ void expect(int slot) const {
    if (own_thread() == 0) expect_bytes(&wide_shared().landed[slot], all);
  }

  __device__ void begin(const ChainStage& stage) const {
    WideShared& s = wide_shared();
    uint4* place = s.arena + stage.slot * D::STAGE_VECTORS + target;
    if (bytes) copy_bulk(place, source + stage.unit * of_unit + stage.chain * of_chain, bytes, &s.landed[stage.slot]);
  }
};

// A warp's part of the sums.
template <class D>
struct WarpgroupSums {
  float upper[D::EACH][4] = {}, lower[D::EACH][4] = {};  // of the chain at work, by halves
  float kept[D::EACH][4] = {};                           // of the chains before

  // A stage: of its rows and weights the first fragments. `add`: to what is there already. Both are done when `await` returns.
  __device__ void begin(MatrixDescriptor rows, MatrixDescriptor weights, bool add) {
    begin_warpgroup_products();
#pragma unroll
    for (int step = 0; step < OF_CHAIN; ++step) {
      const int x = step * D::EIGHTS * VECTORS, w = step * VECTORS;
      multiply_warpgroup(upper, rows + x, weights + w, step || add);
      multiply_warpgroup(lower, rows + (x + VECTORS / 2), weights + (w + VECTORS / 2), step || add);
    }
    end_warpgroup_products();
  }

  // Calls `visit` with the places of each number.
  template <class Visit>
  __device__ static void each(Visit visit) {
#pragma unroll
    for (int n = 0; n < D::EACH; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(n, i);
    }
  }

  __device__ void await() {
    await_warpgroup_products();
    each([&](int n, int i) { has_changed(upper[n][i]), has_changed(lower[n][i]); });
  }

  __device__ void end_chain() {
    each([&](int n, int i) { kept[n][i] += upper[n][i] + lower[n][i]; });
  }

  __device__ void put_all(int warp) const {
    const int across = D::ACROSS == 1 ? warp % 4 : warp, down = D::DOWN == 1 ? 0 : warp / 4;
    D::Shares::put(0, across * 16, down * D::EACH * TILE, kept);
  }
};

// False: leave the kernel. It is no function of its own: at a call products would wait for each other.
template <class D>
__device__ __forceinline__ bool multiply_by_warpgroups(const WidePart& x) {
  WideShared& s = wide_shared();
  const int warp = __shfl_sync(0xffffffffu, own_thread() >> 5, 0), group = warp / 4;
  const int stages = WARPS * x.units, ahead = stages > D::DEPTH ? D::DEPTH - 1 : stages;
  u32 laps = s.laps;
  const WarpgroupCopy<D> copy(x);
  ChainStage next, now;
  admit_to_copies();
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage, next.advance(x, D::DEPTH)) {
    copy.expect(next.slot);
    if (copy.weights) copy.begin(next);
  }
  next = {};
  const bool goes_on = may_read(x);
  admit_to_copies();
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage, next.advance(x, D::DEPTH)) {
    if (!copy.weights) copy.begin(next);
  }
  if (!goes_on) {  // no copy may be in flight when the block leaves
#pragma unroll 1
    for (int slot = 0; slot < ahead; ++slot) wait_for(&s.landed[slot], laps >> slot & 1);
    return false;
  }
  find_factors(x, D::ROWS_);
  WarpgroupSums<D> sums;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    wait_for(&s.landed[now.slot], laps >> now.slot & 1);
    const uint4* weights = s.arena + now.slot * D::STAGE_VECTORS;
    const uint4* rows = weights + (D::TILES * OF_CHAIN + (D::ACROSS == 1 ? 0 : group * TILE)) * VECTORS;
    if (D::DOWN > 1) weights += group * D::EACH * OF_CHAIN * VECTORS;
    sums.begin({rows, TILE, VECTORS}, {weights, TILE, OF_CHAIN * VECTORS}, now.unit > 0);
    if (stage + ahead < stages) {  // where everybody was one stage ago
      if (stage > 0) wait_for(&s.multiplied[next.slot], (laps >> next.slot & 1) ^ 1);
      copy.expect(next.slot);
      copy.begin(next);
      next.advance(x, D::DEPTH);
    }
    sums.await();
    if ((own_thread() & 31) == 0) mbarrier_arrive(&s.multiplied[now.slot]);
    laps ^= 1u << now.slot;
    if (now.unit == x.units - 1) sums.end_chain();
    now.advance(x, D::DEPTH);
  }
  consumer_sync();
  if (own_thread() == 0) s.laps = laps;
  sums.put_all(warp);
  consumer_sync();
  D::Shares::finish(x);
  return true;
}

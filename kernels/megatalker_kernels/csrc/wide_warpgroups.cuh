// Products of many rows by warpgroups (sm_90a): four warps multiply 64 rows and some tiles together. Tensor cores read both operands
// from shared memory, and bulk copies bring them there, so that threads have little else to do than to wait.
#pragma once
#include "wide_copy.cuh"
#include "wide_tiles.cuh"

// `ACROSS` warpgroups lie along the rows, each with 64 of them and all tiles; if that is one, both share the chains.
template <int ACROSS_, int TILES_, int COST_>
struct WarpgroupDivision {
  static constexpr int ACROSS = ACROSS_, TILES = TILES_, COST = COST_;
  static constexpr int SPLIT = WARPS / 4 / ACROSS, CHAINS = WARPS / SPLIT;
  static constexpr int COLUMNS = TILES * TILE, ROWS_ = ACROSS * 64, EIGHTS = ROWS_ / TILE;
  // A stage is the column blocks that a unit has of a chain: of each share of the chains first weights, tile by tile, then rows,
  // block by block.
  static constexpr int SHARE_VECTORS = OF_CHAIN * (TILES + EIGHTS) * VECTORS, STAGE_VECTORS = SPLIT * SHARE_VECTORS;
  static constexpr int DEPTH = clamped(ARENA_BYTES / 16 / STAGE_VECTORS, 0, MOST_STAGES), AHEAD = DEPTH - 1;
  static constexpr int WEIGHTS = SPLIT * TILES, COPIES = WEIGHTS + SPLIT * OF_CHAIN;  // of a stage
  using Shares = WideShares<ROWS_, COLUMNS, SPLIT == 1 ? 1 : WARPS>;
  static_assert(DEPTH >= 2 && ROWS_ <= MOST_ROWS && COPIES <= 32 * WARPS && CHAINS * SPLIT == WARPS);
  static constexpr bool BY_WARPGROUPS = true, WHOLE_UNITS = true;
};

// Which stage comes next.
struct ChainStage {
  int slot = 0, chain = 0, unit = 0;

  __device__ void advance(const WidePart& x, int depth) {
    if (++slot == depth) slot = 0;
    if (++unit == x.units) unit = 0, ++chain;
  }
};

// What a lane brings of each stage: the first ones of all warps share that.
template <class D>
struct WarpgroupCopy {
  const char* source;
  int of_unit, of_chain;  // bytes from one to the next
  int bytes = 0, all;     // its own, and of the whole stage
  int target;             // vector of the stage
  bool weights;           // not rows

  __device__ explicit WarpgroupCopy(const WidePart& x) {
    const int number = (own_thread() & 31) * WARPS + (own_thread() >> 5), apart = x.apart();
    const int eights = min(D::EIGHTS, (wide_shared().wide.padded - x.row) / TILE);
    all = D::SPLIT * OF_CHAIN * (D::TILES + eights) * FRAGMENT_BYTES;
    weights = number < D::WEIGHTS;
    if (weights) {
      const int share = number / D::TILES, own = number % D::TILES;
      const WideTile& tile = x.own_tile(own);
      bytes = OF_CHAIN * FRAGMENT_BYTES;
      of_unit = OF_UNIT * FRAGMENT_BYTES * (tile.of_pair ? 2 : 1), of_chain = bytes;
      source = x.weights(tile) + (tile.of_pair ? tile.of_pair - 1 : 0) * OF_UNIT * FRAGMENT_BYTES + share * D::CHAINS * of_chain;
      target = share * D::SHARE_VECTORS + own * OF_CHAIN * VECTORS;
    } else if (number < D::COPIES) {
      const int share = (number - D::WEIGHTS) / OF_CHAIN, step = (number - D::WEIGHTS) % OF_CHAIN;
      bytes = eights * FRAGMENT_BYTES;
      of_unit = OF_UNIT * apart, of_chain = apart;
      source = x.operand + (share * D::CHAINS + step * WARPS) * apart + x.row / TILE * FRAGMENT_BYTES;
      target = share * D::SHARE_VECTORS + (D::TILES * OF_CHAIN + step * D::EIGHTS) * VECTORS;
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

// What a warp has of the sums.
template <class D>
struct WarpgroupSums {
  float upper[D::TILES][4] = {}, lower[D::TILES][4] = {};    // of the chain at work, by halves
  float kept[D::Shares::SUMS / D::SPLIT][D::TILES][4] = {};  // of all chains; if warpgroups share them, of each

  // A stage: of its rows and weights the first fragments. `add`: to what is there already. Both are done when `await` returns.
  __device__ void begin(Fragments rows, Fragments weights, bool add) {
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
    for (int n = 0; n < D::TILES; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(n, i);
    }
  }

  __device__ void await() {
    await_warpgroup_products();
    each([&](int n, int i) { has_changed(upper[n][i]), has_changed(lower[n][i]); });
  }

  __device__ void end_chain(int chain) {
    each([&](int n, int i) {
      const float sum = upper[n][i] + lower[n][i];
#pragma unroll
      for (int k = 0; k < D::Shares::SUMS / D::SPLIT; ++k)
        kept[k][n][i] += D::SPLIT == 1 || k == chain ? sum : 0;  // without a branch, at which products would wait
    });
  }

  __device__ void put_all(int warp) const {
#pragma unroll
    for (int k = 0; k < D::Shares::SUMS / D::SPLIT; ++k) {
      D::Shares::put(D::SPLIT == 1 ? 0 : warp / 4 * D::CHAINS + k, warp % (4 * D::ACROSS) * 16, 0, kept[k]);
    }
  }
};

// False: leave the kernel. It is no function of its own: at a call products would wait for each other.
template <class D>
__device__ __forceinline__ bool multiply_by_warpgroups(const WidePart& x) {
  WideShared& s = wide_shared();
  const int warp = __shfl_sync(0xffffffffu, own_thread() >> 5, 0), share = D::SPLIT == 1 ? 0 : warp / 4;
  const int stages = D::CHAINS * x.units, ahead = min(D::AHEAD, stages);
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
    const uint4* weights = s.arena + now.slot * D::STAGE_VECTORS + share * D::SHARE_VECTORS;
    const uint4* rows = weights + (D::TILES * OF_CHAIN + (D::SPLIT == 1 ? warp / 4 * TILE : 0)) * VECTORS;
    sums.begin({rows, VECTORS}, {weights, OF_CHAIN * VECTORS}, now.unit > 0);
    if (stage + D::AHEAD < stages) {  // where everybody was one stage ago
      if (stage > 0) wait_for(&s.multiplied[next.slot], (laps >> next.slot & 1) ^ 1);
      copy.expect(next.slot);
      copy.begin(next);
      next.advance(x, D::DEPTH);
    }
    sums.await();
    if ((own_thread() & 31) == 0) mbarrier_arrive(&s.multiplied[now.slot]);
    laps ^= 1u << now.slot;
    if (now.unit == x.units - 1) sums.end_chain(now.chain);
    now.advance(x, D::DEPTH);
  }
  consumer_sync();
  if (own_thread() == 0) s.laps = laps;
  sums.put_all(warp);
  consumer_sync();
  D::Shares::finish(x);
  return true;
}

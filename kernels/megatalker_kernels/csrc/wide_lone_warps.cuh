// Products of few of many rows (sm_90a): each warp has a chain to itself, and brings its operands by bulk copies, a lane for each.
#pragma once
#include "wide_copy.cuh"
#include "wide_warps.cuh"

template <int MS_, int NS_, int FIXED_, int SLOPE_>
struct LoneWarpDivision : WarpDivision<1, 1, MS_, NS_, FIXED_, SLOPE_> {
  using Base = WarpDivision<1, 1, MS_, NS_, FIXED_, SLOPE_>;
  static constexpr bool WHOLE_UNITS = true;
  static constexpr int PARTS = OF_CHAIN / Base::STEPS;  // stages of a unit
  static_assert(Base::CHAINS == 1 && Base::DEPTH <= MOST_PIECES);
};

// A lane's copies of each of its warp's stages: first the tiles, each with its column blocks, then the column blocks, each with its
// rows.
template <class D>
struct LoneCopy {
  const char* source = nullptr;
  int of_unit, of_part;  // bytes from one to the next
  int bytes = 0, all;    // its own, and of the whole stage
  bool weights;          // not rows
  uint4* target;
  u64* landed;

  __device__ explicit LoneCopy(const WidePart& x) {
    WideShared& s = wide_shared();
    const int lane = own_thread() & 31, chain = own_thread() >> 5, apart = x.apart();
    const int eights = x.eights(D::EIGHTS);
    all = D::STEPS * (D::TILES + eights) * FRAGMENT_BYTES;
    weights = lane < D::TILES;
    landed = s.piece_landed[chain];
    target = s.arena + chain * D::STEPS * D::ITEMS * VECTORS;
    if (weights) {
      const WideTile& tile = x.own_tile(lane);
      bytes = of_part = D::STEPS * FRAGMENT_BYTES;
      of_unit = OF_UNIT * FRAGMENT_BYTES * (tile.of_pair ? 2 : 1);
      source = x.weights(tile) + ((tile.of_pair == 2 ? OF_UNIT : 0) + chain * OF_CHAIN) * FRAGMENT_BYTES;
      target += lane * D::STEPS * VECTORS;
    } else if (lane < D::TILES + D::STEPS) {
      const int step = lane - D::TILES;
      bytes = eights * FRAGMENT_BYTES;
      of_unit = OF_UNIT * apart, of_part = D::STEPS * WARPS * apart;
      source = x.operand + (step * WARPS + chain) * apart + x.row / TILE * FRAGMENT_BYTES;
      target += (D::TILES * D::STEPS + step * D::EIGHTS) * VECTORS;
    }
  }

  // A stage will come.
  __device__ void expect(int slot) const {
    if ((own_thread() & 31) == 0) expect_bytes(&landed[slot], all);
  }

  __device__ void begin(int stage, int slot) const {
    const char* from = source + stage / D::PARTS * of_unit + stage % D::PARTS * of_part;
    if (bytes) copy_bulk(target + slot * D::STAGE_VECTORS, from, bytes, &landed[slot]);
  }
};

// False: leave the kernel.
template <class D>
__device__ inline bool multiply_by_lone_warps(const WidePart& x) {
  WideShared& s = wide_shared();
  const int warp = own_thread() >> 5, stages = x.units * D::PARTS, ahead = min(D::DEPTH, stages);
  u32 laps = s.piece_laps[warp];
  const LoneCopy<D> copy(x);
  admit_to_copies();
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage) {
    copy.expect(stage);
    if (copy.weights) copy.begin(stage, stage);
  }
  const bool goes_on = may_read(x);
  admit_to_copies();
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage) {
    if (!copy.weights) copy.begin(stage, stage);
  }
  if (!goes_on) {  // no copy may be in flight when the block leaves
#pragma unroll 1
    for (int slot = 0; slot < ahead; ++slot) wait_for(&copy.landed[slot], laps >> slot & 1);
    return false;
  }
  find_factors(x, D::ROWS_);
  WideSums<D> sums;
  constexpr int STEPS_AT_ONCE = D::MS > 2 ? 1 : D::STEPS;  // of large parts, registers hold one
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    wait_for(&copy.landed[slot], laps >> slot & 1);
    laps ^= 1u << slot;
    const uint4* weights = s.arena + slot * D::STAGE_VECTORS + warp * D::STEPS * D::ITEMS * VECTORS;
    const uint4* rows = weights + D::TILES * D::STEPS * VECTORS;
#pragma unroll STEPS_AT_ONCE
    for (int step = 0; step < D::STEPS; ++step) {
      sums.add(rows + step * D::EIGHTS * VECTORS, weights + step * VECTORS, D::STEPS * VECTORS);
    }
    __syncwarp();
    if (stage + D::DEPTH < stages) copy.expect(slot), copy.begin(stage + D::DEPTH, slot);
    if (++slot == D::DEPTH) slot = 0;
  }
  sums.end_chain(0);
  if ((own_thread() & 31) == 0) s.piece_laps[warp] = laps;
  consumer_sync();
  sums.put_all();
  consumer_sync();
  D::Shares::finish(x);
  return true;
}

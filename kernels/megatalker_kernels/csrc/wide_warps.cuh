// Products of many rows, sixteen of which are an operand of mma.m16n8k16; weights are the other.
#pragma once
#include "copy.cuh"
#include "wide_tiles.cuh"

// How a block's warps share a part of a product: `DOWN` of them lie along the weights, `ACROSS` along the rows, each with
// MS x NS products of sixteen rows and a tile; and those groups of DOWN x ACROSS warps share the chains.
template <int DOWN_, int ACROSS_, int MS_, int NS_, int FIXED_, int SLOPE_>
struct WarpDivision {
  static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, MS = MS_, NS = NS_, FIXED = FIXED_, SLOPE = SLOPE_;
  static constexpr int GROUP = DOWN * ACROSS, SPLIT = WARPS / GROUP, CHAINS = WARPS / SPLIT;
  static constexpr int TILES = DOWN * NS, EIGHTS = ACROSS * MS * 2, ITEMS = TILES + EIGHTS;
  static constexpr int COLUMNS = TILES * TILE, ROWS_ = EIGHTS * TILE;
  static constexpr int STEPS = 4 * SPLIT * ITEMS * VECTORS * 16 <= ARENA_BYTES ? 2 : 1;  // column blocks of a chain in a stage
  static constexpr int STAGE_VECTORS = SPLIT * STEPS * ITEMS * VECTORS;
  static constexpr int DEPTH = clamped(ARENA_BYTES / 16 / STAGE_VECTORS, 0, 8), AHEAD = DEPTH - 1;
  using Shares = WideShares<ROWS_, COLUMNS, SPLIT == 1 ? 1 : WARPS>;
  static_assert(DEPTH >= 2 && TILES <= MOST_TILES && ROWS_ <= MOST_ROWS && EIGHTS % GROUP == 0);
  static_assert(CHAINS * SPLIT == WARPS && (SPLIT == 1 || CHAINS <= 2));

  static constexpr bool BY_WARPGROUPS = false, WHOLE_UNITS = false;
};

// A group's way through the column blocks of its chains, STEPS at a time.
template <class D>
struct WideStage {
  static constexpr int PARTS = OF_CHAIN / D::STEPS;
  int slot = 0, chain = 0, unit = 0, part = 0;

  __device__ static int count(const WidePart& x) { return D::CHAINS * x.units * PARTS; }
  __device__ bool ends_chain(const WidePart& x) const { return part == PARTS - 1 && unit == x.units - 1; }
  __device__ void advance(const WidePart& x) {
    if (++slot == D::DEPTH) slot = 0;
    if (++part < PARTS) return;
    part = 0;
    if (++unit < x.units) return;
    unit = 0, ++chain;
  }
};

// A thread's share of bringing a stage.
template <class D>
struct WideLoader {
  static constexpr int TILES = (D::TILES + D::GROUP - 1) / D::GROUP, EIGHTS = D::EIGHTS / D::GROUP,
                       SLOT_BYTES = D::STAGE_VECTORS * 16;
  const char* tile[TILES];
  int pair[TILES];
  const char* rows;
  int apart;
  u32 target;     // in shared memory
  u32 there = 0;  // a bit for each of its eights
  int group, member;

  __device__ explicit WideLoader(const WidePart& x) {
    const WideShared& s = wide_shared();
    const int warp = own_thread() >> 5, lane = own_thread() & 31;
    group = warp / D::GROUP, member = warp % D::GROUP;
    apart = x.apart();
    rows = x.operand + (x.row / TILE + member) * FRAGMENT_BYTES + lane * 16;
    target = shared_address(s.arena) + (group * D::STEPS * D::ITEMS + member) * FRAGMENT_BYTES + lane * 16;
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) there |= u32(x.row + (i * D::GROUP + member) * TILE < padded_rows(x.rows)) << i;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int which = min(i * D::GROUP + member, D::TILES - 1);
      tile[i] = x.weights(x.own_tile(which)) + lane * 16, pair[i] = x.own_tile(which).of_pair;
    }
  }

  __device__ void weights(const WidePart& x, const WideStage<D>& stage) const {
    const int begin = stage.unit * OF_UNIT, size = min(OF_UNIT, x.blocks - begin), chain = group * D::CHAINS + stage.chain;
    const bool whole = size == OF_UNIT;
    const int first = whole ? chain * OF_CHAIN + stage.part * D::STEPS : chain + stage.part * D::STEPS * WARPS,
              next = whole ? 1 : WARPS;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      if (D::TILES % D::GROUP && i * D::GROUP + member >= D::TILES) continue;
      const char* source = tile[i] + (begin + first + (pair[i] ? begin + (pair[i] - 1) * size : 0)) * FRAGMENT_BYTES;
#pragma unroll
      for (int step = 0; step < D::STEPS; ++step) {
        const u32 to = target + stage.slot * SLOT_BYTES + (step * D::ITEMS + i * D::GROUP) * FRAGMENT_BYTES;
        if (whole || first + step * next < size) copy_async_16(to, source + step * next * FRAGMENT_BYTES);
      }
    }
  }

  __device__ void activations(const WidePart& x, const WideStage<D>& stage) const {
    const int block = stage.unit * OF_UNIT + group * D::CHAINS + stage.chain + stage.part * D::STEPS * WARPS;
#pragma unroll
    for (int step = 0; step < D::STEPS; ++step) {
      if (block + step * WARPS >= x.blocks) continue;
      const char* source = rows + (block + step * WARPS) * apart;
#pragma unroll
      for (int i = 0; i < EIGHTS; ++i) {
        const u32 to = target + stage.slot * SLOT_BYTES + (step * D::ITEMS + D::TILES + i * D::GROUP) * FRAGMENT_BYTES;
        if (there >> i & 1) copy_async_16(to, source + i * D::GROUP * FRAGMENT_BYTES);
      }
    }
  }
};

// The sums of a warp.
template <class D>
struct WideSums {
  float upper[D::MS][D::NS][4] = {}, lower[D::MS][D::NS][4] = {};  // of the chain at work, by halves
  float kept[D::MS][D::NS][4] = {};                                // of all earlier chains; if others share them, of the first

  // A column block: of its rows and weights the first fragments, and vectors from a tile's to the next.
  __device__ void add(const uint4* rows, const uint4* weights, int of_tile = VECTORS) {
    const int lane = own_thread() & 31;
    rows += (lane >> 3 & 1) * VECTORS + (lane >> 4) * TILE + lane % TILE, weights += lane;
    uint4 w[D::NS];
#pragma unroll
    for (int n = 0; n < D::NS; ++n) w[n] = load_matrices(weights + n * of_tile);
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
      const uint4 x = load_matrices(rows + 2 * m * VECTORS), y = load_matrices(rows + 2 * m * VECTORS + VECTORS / 2);
#pragma unroll
      for (int n = 0; n < D::NS; ++n) {
        mma(upper[m][n], x.x, x.y, x.z, x.w, w[n].x, w[n].y);
        mma(lower[m][n], y.x, y.y, y.z, y.w, w[n].z, w[n].w);
      }
    }
  }

  __device__ void end_chain(int chain) {
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
#pragma unroll
      for (int n = 0; n < D::NS; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = upper[m][n][i] + lower[m][n][i];
          if (D::SPLIT == 1) {
            kept[m][n][i] += sum;
          } else if (D::CHAINS == 1 || chain > 0) {
            upper[m][n][i] = sum;
            continue;
          } else {
            kept[m][n][i] = sum;
          }
          upper[m][n][i] = lower[m][n][i] = 0;
        }
      }
    }
  }

  __device__ static void put(int share, const float (&values)[D::MS][D::NS][4]) {
    const int member = (own_thread() >> 5) % D::GROUP;
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
      D::Shares::put(share, (member / D::DOWN * D::MS + m) * 16, member % D::DOWN * D::NS * TILE, values[m]);
    }
  }

  __device__ void put_all() const {
    const int group = (own_thread() >> 5) / D::GROUP;
    if (D::SPLIT == 1) {
      put(0, kept);
    } else {
      if (D::CHAINS > 1) put(group * D::CHAINS, kept);
      put(group * D::CHAINS + D::CHAINS - 1, upper);
    }
  }
};

template <class D>
__device__ inline void stage_sync() {
  if (D::GROUP == 1) {
    __syncwarp();  // each warp fetches for itself
  } else {
    consumer_sync();
  }
}

// False: leave the kernel.
template <class D>
__device__ inline bool multiply_by_warps(const WidePart& x) {
  WideShared& s = wide_shared();
  const int thread = own_thread(), warp = thread >> 5, group = warp / D::GROUP, member = warp % D::GROUP;
  const int stages = WideStage<D>::count(x), ahead = min(D::AHEAD, stages);
  const WideLoader<D> loader(x);
  WideStage<D> next, now;
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage, next.advance(x)) loader.weights(x, next);
  commit_async_copies();
  if (!may_read(x)) return false;
  next = {};
#pragma unroll 1
  for (int stage = 0; stage < D::AHEAD; ++stage) {
    if (stage < ahead) loader.activations(x, next), next.advance(x);
    commit_async_copies();
  }
  find_factors(x, D::ROWS_);
  const bool works = x.row + member / D::DOWN * D::MS * 16 < x.rows;
  WideSums<D> sums;
#pragma unroll 1
  for (int rest = stages; rest > 0; --rest, now.advance(x)) {
    await_async_copies_but<D::AHEAD - 1>();
    stage_sync<D>();
    const uint4* items = s.arena + now.slot * D::STAGE_VECTORS + group * D::STEPS * D::ITEMS * VECTORS;
    const int block = now.unit * OF_UNIT + group * D::CHAINS + now.chain + now.part * D::STEPS * WARPS;
    if (works) {
#pragma unroll
      for (int step = 0; step < D::STEPS; ++step, items += D::ITEMS * VECTORS) {
        if (block + step * WARPS >= x.blocks) continue;
        sums.add(items + (D::TILES + member / D::DOWN * D::MS * 2) * VECTORS, items + member % D::DOWN * D::NS * VECTORS);
      }
      if (now.ends_chain(x)) sums.end_chain(now.chain);
    }
    if (rest > D::AHEAD) {  // where everybody was one stage ago
      loader.weights(x, next);
      loader.activations(x, next);
      next.advance(x);
    }
    commit_async_copies();
  }
  consumer_sync();
  sums.put_all();
  consumer_sync();
  D::Shares::finish(x);
  return true;
}

// Products of many rows, which are the sixteen-row operand of mma.m16n8k16; weights are the other. A number is added up as in the megakernel: the column blocks chain, chain + WARPS, ... one after the other, in two halves, then the WARPS
// chains. So a row gets the same bits from either kernel, whatever is beside it.
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "wide_rows.cuh"

constexpr int VECTORS = TILE * KBLOCK * sizeof(Operand) / 16;  // vectors of a tile's or eight rows' column block: one of each lane

// How a block's warps share a part of a product: `DOWN` of them lie along the weights, `ACROSS` along the rows, each with
// MS x NS products of sixteen rows and a tile; and those groups of DOWN x ACROSS warps share the chains.
template <int DOWN_, int ACROSS_, int MS_, int NS_>
struct Division {
  static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, MS = MS_, NS = NS_;
  static constexpr int GROUP = DOWN * ACROSS, SPLIT = WARPS / GROUP, CHAINS = WARPS / SPLIT;
  static constexpr int TILES = DOWN * NS, EIGHTS = ACROSS * MS * 2, ITEMS = TILES + EIGHTS;
  static constexpr int COLUMNS = TILES * TILE, ROWS_ = EIGHTS * TILE;
  static constexpr int STEPS = 4 * SPLIT * ITEMS * VECTORS * 16 <= ARENA_BYTES ? 2 : 1;  // column blocks of a chain in a stage
  static constexpr int STAGE_VECTORS = SPLIT * STEPS * ITEMS * VECTORS;
  static constexpr int DEPTH = clamped(ARENA_BYTES / 16 / STAGE_VECTORS, 0, 8), AHEAD = DEPTH - 1;
  static constexpr int SUMS = SPLIT == 1 ? 1 : WARPS;  // of each number
  static constexpr int STRIDE = COLUMNS + (SUMS * ROWS_ * (COLUMNS + 8) * 4 <= ARENA_BYTES ? 8 : 4);  // so that few lie in the same bank
  static_assert(DEPTH >= 2 && TILES <= MOST_TILES && ROWS_ <= MOST_ROWS && SUMS * ROWS_ * STRIDE * 4 <= ARENA_BYTES);
  static_assert(CHAINS * SPLIT == WARPS && (SPLIT == 1 || CHAINS <= 2));
  static_assert(EIGHTS % GROUP == 0 && ROWS_ * COLUMNS / 4 % CONSUMERS == 0);
};

struct WideOperand {
  const Operand* start;
  int blocks;  // column blocks
  int units;   // stages of packing.py that a tile has
};

constexpr int OF_UNIT = STAGE_COLUMNS / KBLOCK, OF_CHAIN = OF_UNIT / WARPS;  // column blocks of such a stage, and of one chain in it

// A group's way through the column blocks of its chains, STEPS at a time.
template <class D>
struct WideStage {
  static constexpr int PARTS = OF_CHAIN / D::STEPS;
  int slot = 0, chain = 0, unit = 0, part = 0;

  __device__ static int count(const WideOperand& x) { return D::CHAINS * x.units * PARTS; }
  __device__ bool ends_chain(const WideOperand& x) const { return part == PARTS - 1 && unit == x.units - 1; }
  __device__ void advance(const WideOperand& x) {
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
  static constexpr int TILES = (D::TILES + D::GROUP - 1) / D::GROUP, EIGHTS = D::EIGHTS / D::GROUP, SLOT_BYTES = D::STAGE_VECTORS * 16;
  const char* tile[TILES];
  int pair[TILES];
  const char* rows;
  int apart;   // bytes from one column block of the rows to the next
  u32 target;  // in shared memory
  u32 there = 0;  // a bit for each of its eights
  int group, member;

  __device__ WideLoader(const WideOperand& x, int first_row) {
    const WideShared& s = wide_shared();
    const int warp = own_thread() >> 5, lane = own_thread() & 31;
    group = warp / D::GROUP, member = warp % D::GROUP;
    apart = s.wide.padded * KBLOCK * sizeof(Operand);
    rows = reinterpret_cast<const char*>(x.start + u64(first_row + member * TILE) * KBLOCK) + lane * 16;
    target = shared_address(s.arena) + (group * D::STEPS * D::ITEMS + member) * VECTORS * 16 + lane * 16;
#pragma unroll
    for (int i = 0; i < EIGHTS; ++i) there |= u32(first_row + (i * D::GROUP + member) * TILE < s.wide.padded) << i;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int which = min(i * D::GROUP + member, D::TILES - 1);
      tile[i] = s.tile[which] + lane * 16, pair[i] = s.of_pair[which];
    }
  }

  __device__ void weights(const WideOperand& x, const WideStage<D>& stage) const {
    const int begin = stage.unit * OF_UNIT, size = min(OF_UNIT, x.blocks - begin), chain = group * D::CHAINS + stage.chain;
    const bool whole = size == OF_UNIT;
    const int first = whole ? chain * OF_CHAIN + stage.part * D::STEPS : chain + stage.part * D::STEPS * WARPS, next = whole ? 1 : WARPS;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      if (D::TILES % D::GROUP && i * D::GROUP + member >= D::TILES) continue;
      const char* source = tile[i] + (begin + first + (pair[i] ? begin + (pair[i] - 1) * size : 0)) * (VECTORS * 16);
#pragma unroll
      for (int step = 0; step < D::STEPS; ++step) {
        const u32 to = target + stage.slot * SLOT_BYTES + (step * D::ITEMS + i * D::GROUP) * (VECTORS * 16);
        if (whole || first + step * next < size) copy_async_16(to, source + step * next * (VECTORS * 16));
      }
    }
  }

  __device__ void activations(const WideOperand& x, const WideStage<D>& stage) const {
    const int block = stage.unit * OF_UNIT + group * D::CHAINS + stage.chain + stage.part * D::STEPS * WARPS;
#pragma unroll
    for (int step = 0; step < D::STEPS; ++step) {
      if (block + step * WARPS >= x.blocks) continue;
      const char* source = rows + (block + step * WARPS) * apart;
#pragma unroll
      for (int i = 0; i < EIGHTS; ++i) {
        const u32 to = target + stage.slot * SLOT_BYTES + (step * D::ITEMS + D::TILES + i * D::GROUP) * (VECTORS * 16);
        if (there >> i & 1) copy_async_16(to, source + i * D::GROUP * (VECTORS * 16));
      }
    }
  }
};

// What a warp adds up.
template <class D>
struct WideSums {
  float upper[D::MS][D::NS][4] = {}, lower[D::MS][D::NS][4] = {};  // of the chain at work, by halves
  float kept[D::MS][D::NS][4] = {};  // of all earlier chains; if others share them, of the first

  __device__ void add(const uint4* rows, const uint4* weights) {
    uint4 w[D::NS];
#pragma unroll
    for (int n = 0; n < D::NS; ++n) w[n] = weights[n * VECTORS];
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
      const uint4 x = rows[2 * m * VECTORS], y = rows[(2 * m + 1) * VECTORS];
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

  // [rows][STRIDE]
  __device__ static void put(float* sums, const float (&values)[D::MS][D::NS][4]) {
    const int lane = own_thread() & 31, member = (own_thread() >> 5) % D::GROUP;
    const int row = member / D::DOWN * D::MS * 16 + (lane >> 2), column = member % D::DOWN * D::NS * TILE + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
#pragma unroll
      for (int n = 0; n < D::NS; ++n) {
        float2* place = reinterpret_cast<float2*>(sums + (row + m * 16) * D::STRIDE + column + n * TILE);
        place[0] = {values[m][n][0], values[m][n][1]}, place[8 * D::STRIDE / 2] = {values[m][n][2], values[m][n][3]};
      }
    }
  }

  __device__ void put_all(float* sums) const {
    constexpr int APART = D::ROWS_ * D::STRIDE;
    const int group = (own_thread() >> 5) / D::GROUP;
    if (D::SPLIT == 1) {
      put(sums, kept);
    } else {
      if (D::CHAINS > 1) put(sums + group * D::CHAINS * APART, kept);
      put(sums + (group * D::CHAINS + D::CHAINS - 1) * APART, upper);
    }
  }
};

// Four neighbouring columns of a row; all lanes come here, those not `there` for company.
__device__ inline void finish_wide(PhaseKind kind, int layer, bool there, int row, int column, float4 value, float factor) {
  const WideShared& s = wide_shared();
  const Buffers& to = s.to;
  const Sizes& z = s.pass.sizes;
  if (kind == GATE_UP) {  // of each eight columns, four are gates and four go up
    const int other = (own_thread() & 31) ^ 1;
    value = value * factor;
    const float4 up{__shfl_sync(0xffffffffu, value.x, other), __shfl_sync(0xffffffffu, value.y, other),
                    __shfl_sync(0xffffffffu, value.z, other), __shfl_sync(0xffffffffu, value.w, other)};
    if (there && column % TILE == 0) put_columns(to.activation, row, column / 2, gated(value, up));
    return;
  }
  if (kind == QKV || kind == HEAD) {
    if (!there) return;
    value = value * factor;
    if (kind == QKV) {
      four(to.qkv + u64(row) * z.qkv + column) = value;
    } else if (s.pass.talker) {
      four(to.pending + u64(s.wide.row[s.wide.source[row]].slot) * Talker::VOCAB + column) = value;
    } else {
      four(to.predictor_logits + (u64(row) * (GROUPS - 1) + s.pass.number - 1) * Predictor::VOCAB + column) = value;
    }
    return;
  }
  float4& residual = four(to.x + u64(row) * z.hidden + column);
  if (there) {
    value = kind == PROJECT ? value + four(const_cast<float*>(to.projection_bias) + column) : residual + value;
    residual = value;
  }
  const float* norm = s.pass.norms;
  if (kind == OUT) norm += layer * z.norms + z.norms - z.hidden;
  if (kind == DOWN) norm += (layer + 1) * z.norms;  // of the next layer, or the final one
  int place = row;
  if (kind == DOWN && layer == z.layers - 1 && s.pass.talker && there) place = s.wide.heard[row];
  put_operand(there && place >= 0, place, column, value, norm);
}

// Where tile `number` of a matrix lies.
__device__ inline void find_tile(int i, PhaseKind kind, int layer, const Extent& extent, int number) {
  WideShared& s = wide_shared();
  const int block = number % BLOCKS, local = number / BLOCKS, first = local / 2 * 2;
  const Places places(block);
  const Sizes& z = s.pass.sizes;
  u64 offset = s.pass.talker ? places.talker : kind == HEAD ? places.heads + (s.pass.number - 1) * places.head : places.predictor;
  if (kind == PROJECT) offset = 0;
  if (kind != PROJECT && (kind != HEAD || s.pass.talker)) offset += (kind == HEAD ? z.layers : layer) * share_of_layer(block, z);
  if (kind < LAYER_PHASES) {
    for (const PhaseKind before : {MT_LAYER_MATRICES}) {
      if (before < kind) offset += share_of(block, Extent(before, z));
    }
  }
  offset += s.to.block_offset[block] + u64(first) * TILE * extent.columns * sizeof(Weight);
  s.tile[i] = reinterpret_cast<const char*>(s.to.weights) + offset;
  s.of_pair[i] = first + 1 < tiles_of(block, extent.tiles) ? 1 + local % 2 : 0;
}

template <class D>
__device__ inline void stage_sync() {
  if (D::GROUP == 1) {
    __syncwarp();  // each warp fetches for itself
  } else {
    consumer_sync();
  }
}

// One part of a product; the first one waits for the phase before once its weights are on their way. False: leave the kernel.
template <class D>
__device__ __forceinline__ bool multiply_part(PhaseKind kind, int layer, const Extent& extent, const WideOperand& x, int tile, int row, int rows, bool first) {
  WideShared& s = wide_shared();
  const int thread = own_thread(), warp = thread >> 5, lane = thread & 31, group = warp / D::GROUP, member = warp % D::GROUP;
  const int stages = WideStage<D>::count(x), ahead = min(D::AHEAD, stages);
  consumer_sync();
  if (thread < D::TILES) find_tile(thread, kind, layer, extent, min(tile + thread, extent.tiles - 1));
  consumer_sync();
  const WideLoader<D> loader(x, row);
  WideStage<D> next, now;
#pragma unroll 1
  for (int stage = 0; stage < ahead; ++stage, next.advance(x)) loader.weights(x, next);
  commit_async_copies();
  if (first) {
    if (!proceed()) return false;
    if (thread == 0) stamp(1);
  }
  next = {};
#pragma unroll 1
  for (int stage = 0; stage < D::AHEAD; ++stage) {
    if (stage < ahead) loader.activations(x, next), next.advance(x);
    commit_async_copies();
  }
  if (kind != OUT && kind != DOWN && kind != PROJECT && thread < D::ROWS_ && row + thread < rows) s.factor[thread] = norm_factor(row + thread);
  const bool works = row + member / D::DOWN * D::MS * 16 < rows;
  WideSums<D> sums;
#pragma unroll 1
  for (int rest = stages; rest > 0; --rest, now.advance(x)) {
    await_async_copies_but<D::AHEAD - 1>();
    stage_sync<D>();
    const uint4* items = s.arena + now.slot * D::STAGE_VECTORS + group * D::STEPS * D::ITEMS * VECTORS + lane;
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
  float* shares = reinterpret_cast<float*>(s.arena);
  sums.put_all(shares);
  consumer_sync();
#pragma unroll 1
  for (int o = thread; o < D::ROWS_ * D::COLUMNS / 4; o += CONSUMERS) {
    constexpr int QUADS = D::COLUMNS / 4;
    const int local = o / QUADS, column = o % QUADS * 4;
    float4 value{};
#pragma unroll
    for (int i = 0; i < D::SUMS; ++i) value = value + four(shares + (i * D::ROWS_ + local) * D::STRIDE + column);
    finish_wide(kind, layer, row + local < rows && tile * TILE + column < extent.tiles * TILE, row + local, tile * TILE + column, value, s.factor[local]);
  }
  return true;
}

template <class D>
__device__ __noinline__ bool multiply_wide(PhaseKind kind, int layer, int rows) {
  const WideShared& s = wide_shared();
  const Extent extent(kind, s.pass.sizes);
  const void* source = kind == OUT || kind == PROJECT ? static_cast<const void*>(s.to.attention) : kind == DOWN ? s.to.activation : nullptr;
  const int blocks = extent.columns / KBLOCK;
  const WideOperand x{source ? static_cast<const Operand*>(source) : s.wide.operand, blocks, (blocks + OF_UNIT - 1) / OF_UNIT};
  const int down = (extent.tiles + D::TILES - 1) / D::TILES, parts = down * ((rows + D::ROWS_ - 1) / D::ROWS_);
#pragma unroll 1
  for (int part = blockIdx.x; part < parts; part += BLOCKS) {
    if (!multiply_part<D>(kind, layer, extent, x, part % down * D::TILES, part / down * D::ROWS_, rows, part == int(blockIdx.x))) return false;
  }
  return int(blockIdx.x) < parts || proceed();
}

using SmallDivision = Division<1, 1, 2, 4>;   // 32 x 32
using MiddleDivision = Division<1, 2, 2, 4>;  // 32 x 64
using BroadDivision = Division<1, 2, 2, WARPS * 64 * 52 * 4 <= ARENA_BYTES ? 6 : 4>;  // 48 x 64, where the sums fit
using LargeDivision = Division<2, 4, 2, 4>;   // 64 x 128
using HugeDivision = Division<2, 4, 2, 6>;    // 96 x 128

// Of a product, when a part takes so long: measured on an H200, in tenths of a microsecond for 1024 columns.
template <class D>
__device__ inline int cost_of(int tiles, int rows, int part) {
  const int parts = (tiles + D::TILES - 1) / D::TILES * ((rows + D::ROWS_ - 1) / D::ROWS_);
  return (parts + BLOCKS - 1) / BLOCKS * part;
}

__device__ inline bool product_wide(PhaseKind kind, int layer, int rows) {
  const int tiles = Extent(kind, wide_shared().pass.sizes).tiles;
  const bool adds = kind == OUT || kind == DOWN || kind == PROJECT;  // these count squares of whole column blocks
  const int small = cost_of<SmallDivision>(tiles, rows, 30), middle = cost_of<MiddleDivision>(tiles, rows, 55);
  const int broad = adds ? middle : cost_of<BroadDivision>(tiles, rows, 70);
  const int large = cost_of<LargeDivision>(tiles, rows, 140), huge = cost_of<HugeDivision>(tiles, rows, 190);
  const int least = min(min(min(small, middle), min(large, huge)), broad);
  if (small == least) return multiply_wide<SmallDivision>(kind, layer, rows);
  if (middle == least) return multiply_wide<MiddleDivision>(kind, layer, rows);
  if (broad == least) return multiply_wide<BroadDivision>(kind, layer, rows);
  if (large == least) return multiply_wide<LargeDivision>(kind, layer, rows);
  return multiply_wide<HugeDivision>(kind, layer, rows);
}

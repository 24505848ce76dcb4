// Products of many rows. Weights are the sixteen-row operand of mma.m16n8k16, rows of the stream the eight-column one. A number is
// added up as in the megakernel: the column blocks chain, chain + WARPS, ... one after the other, in two halves, then the WARPS
// chains. So a row gets the same bits from either kernel, whatever is beside it.
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "wide_rows.cuh"

constexpr int FRAGMENT = TILE * KBLOCK * sizeof(Operand) / 16;  // vectors of a tile's or eight rows' column block: one of each lane

// How a block's warps share a part of a product: `DOWN` of them lie along the weights, `ACROSS` along the rows, each with
// MS x NS products of 16 x 8; and those groups of DOWN x ACROSS warps share the chains.
template <int DOWN_, int ACROSS_, int MS_, int NS_>
struct Division {
  static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, MS = MS_, NS = NS_;
  static constexpr int GROUP = DOWN * ACROSS, SPLIT = WARPS / GROUP, CHAINS = WARPS / SPLIT;
  static constexpr int TILES = DOWN * MS * 2, EIGHTS = ACROSS * NS, ITEMS = TILES + EIGHTS;
  static constexpr int COLUMNS = TILES * TILE, ROWS_ = EIGHTS * TILE;
  static constexpr int STEPS = SPLIT == 1 ? 2 : 1;  // column blocks of a chain in a stage
  static constexpr int STAGE_VECTORS = SPLIT * STEPS * ITEMS * FRAGMENT;
  static constexpr int DEPTH = clamped(ARENA_BYTES / 16 / STAGE_VECTORS, 0, 8), AHEAD = DEPTH - 1;
  static constexpr int STRIDE = COLUMNS + 4;  // of sums, so that a warp's lie in different banks
  static constexpr int SUMS = SPLIT == 1 ? 1 : WARPS;  // of each number
  static_assert(DEPTH >= 2 && TILES <= MOST_TILES && ROWS_ <= MOST_ROWS && SUMS * ROWS_ * STRIDE * 4 <= ARENA_BYTES);
  static_assert(CHAINS * SPLIT == WARPS && CHAINS % STEPS == 0 && (SPLIT == 1 || CHAINS <= 2));
  static_assert(TILES * STEPS % GROUP == 0 && EIGHTS * STEPS % GROUP == 0 && ROWS_ * COLUMNS / 4 % CONSUMERS == 0);
};

struct WideOperand {
  const Operand* start;
  int blocks;  // column blocks
  int steps;   // column blocks of the longest chain
};

// The `step`-th column block of those that a group of warps adds up; at least `blocks`: there is none.
template <class D>
__device__ inline int column_block(const WideOperand& x, int group, int step) {
  const int chain = step / x.steps;
  return group * D::CHAINS + chain + (step - chain * x.steps) * WARPS;
}

template <class D>
__device__ inline uint4* stage_of(int stage, int group) {
  return wide_shared().arena + stage % D::DEPTH * D::STAGE_VECTORS + group * D::STEPS * D::ITEMS * FRAGMENT;
}

template <class D>
__device__ inline void load_weights(const WideOperand& x, int stage) {
  const WideShared& s = wide_shared();
  const int warp = own_thread() >> 5, lane = own_thread() & 31, group = warp / D::GROUP, member = warp % D::GROUP;
  uint4* target = stage_of<D>(stage, group) + lane;
#pragma unroll
  for (int i = 0; i < D::TILES * D::STEPS / D::GROUP; ++i) {
    const int f = i * D::GROUP + member, step = f / D::TILES, tile = f % D::TILES;
    const int block = column_block<D>(x, group, stage * D::STEPS + step);
    if (block >= x.blocks) continue;
    constexpr int OF_STAGE = STAGE_COLUMNS / KBLOCK;
    const int begin = block / OF_STAGE * OF_STAGE;  // of the stages that packing.py lays out
    const int pair = s.of_pair[tile], before = pair ? begin + (pair - 1) * min(OF_STAGE, x.blocks - begin) : 0;
    copy_async_16(target + (step * D::ITEMS + tile) * FRAGMENT, s.tile[tile] + ((block + before) * FRAGMENT + lane) * 16);
  }
}

template <class D>
__device__ inline void load_rows(const WideOperand& x, int stage, int first_row) {
  const int warp = own_thread() >> 5, lane = own_thread() & 31, group = warp / D::GROUP, member = warp % D::GROUP;
  const int padded = wide_shared().wide.padded;
  uint4* target = stage_of<D>(stage, group) + lane;
#pragma unroll
  for (int i = 0; i < D::EIGHTS * D::STEPS / D::GROUP; ++i) {
    const int f = i * D::GROUP + member, step = f / D::EIGHTS, eight = f % D::EIGHTS, row = first_row + eight * TILE;
    const int block = column_block<D>(x, group, stage * D::STEPS + step);
    if (block >= x.blocks || row >= padded) continue;
    copy_async_16(target + (step * D::ITEMS + D::TILES + eight) * FRAGMENT, x.start + (u64(block) * padded + row) * KBLOCK + lane * 8);
  }
}

// What a warp adds up.
template <class D>
struct WideSums {
  float upper[D::MS][D::NS][4] = {}, lower[D::MS][D::NS][4] = {};  // of the chain at work, by halves
  float kept[D::MS][D::NS][4] = {};  // of all earlier chains; if others share them, of the first

  __device__ void add(const uint4* weights, const uint4* rows) {
    uint4 w[2 * D::MS];
#pragma unroll
    for (int i = 0; i < 2 * D::MS; ++i) w[i] = weights[i * FRAGMENT];
#pragma unroll
    for (int n = 0; n < D::NS; ++n) {
      const uint4 x = rows[n * FRAGMENT];
#pragma unroll
      for (int m = 0; m < D::MS; ++m) {
        const uint4 &a = w[2 * m], &b = w[2 * m + 1];
        mma(upper[m][n], a.x, b.x, a.y, b.y, x.x, x.z);
        mma(lower[m][n], a.z, b.z, a.w, b.w, x.y, x.w);
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
    const int column = member % D::DOWN * D::MS * 16 + (lane >> 2), row = member / D::DOWN * D::NS * 8 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < D::MS; ++m) {
#pragma unroll
      for (int n = 0; n < D::NS; ++n) {
        float* place = sums + (row + n * 8) * D::STRIDE + column + m * 16;
        place[0] = values[m][n][0], place[D::STRIDE] = values[m][n][1];
        place[8] = values[m][n][2], place[D::STRIDE + 8] = values[m][n][3];
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
    Operand* activation = reinterpret_cast<Operand*>(to.activation);
    if (there && column % TILE == 0) *reinterpret_cast<uint2*>(operand_at(activation, row, column / 2)) = gated(value, up);
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
  const int stages = D::CHAINS * x.steps / D::STEPS;
  consumer_sync();
  if (thread < D::TILES) find_tile(thread, kind, layer, extent, min(tile + thread, extent.tiles - 1));
  consumer_sync();
#pragma unroll 1
  for (int stage = 0; stage < min(D::AHEAD, stages); ++stage) load_weights<D>(x, stage);
  commit_async_copies();
  if (first) {
    if (!proceed()) return false;
    if (thread == 0) stamp(1);
  }
#pragma unroll 1
  for (int stage = 0; stage < D::AHEAD; ++stage) {
    if (stage < stages) load_rows<D>(x, stage, row);
    commit_async_copies();
  }
  if (kind != OUT && kind != DOWN && kind != PROJECT && thread < D::ROWS_ && row + thread < rows) s.factor[thread] = norm_factor(row + thread);
  WideSums<D> sums;
  int chain = 0, place = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    await_async_copies_but<D::AHEAD - 1>();
    stage_sync<D>();
    if (stage + D::AHEAD < stages) {
      load_weights<D>(x, stage + D::AHEAD);
      load_rows<D>(x, stage + D::AHEAD, row);
    }
    commit_async_copies();
    const uint4* items = stage_of<D>(stage, group) + lane;
#pragma unroll
    for (int step = 0; step < D::STEPS; ++step, items += D::ITEMS * FRAGMENT) {
      if (group * D::CHAINS + chain + place * WARPS < x.blocks) {
        sums.add(items + member % D::DOWN * D::MS * 2 * FRAGMENT, items + (D::TILES + member / D::DOWN * D::NS) * FRAGMENT);
      }
      if (++place == x.steps) sums.end_chain(chain), ++chain, place = 0;
    }
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
  const WideOperand x{source ? static_cast<const Operand*>(source) : s.wide.operand, blocks, (blocks + WARPS - 1) / WARPS};
  const int down = (extent.tiles + D::TILES - 1) / D::TILES, parts = down * ((rows + D::ROWS_ - 1) / D::ROWS_);
#pragma unroll 1
  for (int part = blockIdx.x; part < parts; part += BLOCKS) {
    if (!multiply_part<D>(kind, layer, extent, x, part % down * D::TILES, part / down * D::ROWS_, rows, part == int(blockIdx.x))) return false;
  }
  return int(blockIdx.x) < parts || proceed();
}

using SmallDivision = Division<1, 1, 2, 4>;   // 32 x 32
using MiddleDivision = Division<1, 2, 2, 4>;  // 32 x 64
using LargeDivision = Division<2, 4, 2, 4>;   // 64 x 128
using HugeDivision = Division<2, 4, 3, 4>;    // 96 x 128

// What a block reads, and a share of what all read: the one that takes longer counts.
template <class D>
__device__ inline int cost_of(int tiles, int rows) {
  const int parts = (tiles + D::TILES - 1) / D::TILES * ((rows + D::ROWS_ - 1) / D::ROWS_);
  return (parts + BLOCKS - 1) / BLOCKS * D::ITEMS * BLOCKS + 2 * parts * D::ITEMS;
}

__device__ inline bool product_wide(PhaseKind kind, int layer, int rows) {
  const int tiles = Extent(kind, wide_shared().pass.sizes).tiles;
  const int costs[] = {cost_of<SmallDivision>(tiles, rows), cost_of<MiddleDivision>(tiles, rows), cost_of<LargeDivision>(tiles, rows),
                       cost_of<HugeDivision>(tiles, rows)};
  const int least = min(min(costs[0], costs[1]), min(costs[2], costs[3]));
  if (costs[0] == least) return multiply_wide<SmallDivision>(kind, layer, rows);
  if (costs[1] == least) return multiply_wide<MiddleDivision>(kind, layer, rows);
  if (costs[2] == least) return multiply_wide<LargeDivision>(kind, layer, rows);
  return multiply_wide<HugeDivision>(kind, layer, rows);
}

// Matrix times activations: the block's tiles of eight weight rows, streamed through the ring, on tensor cores. One
// routine serves every matrix of both stacks: a frame is too short to load code for each.
#pragma once
#include "activation.cuh"
#include "extent.cuh"
#include "pipeline.cuh"

// The column of a block's own `local`-th tile.
__device__ inline int owned_column(int local, int n) { return (int(blockIdx.x) + local * BLOCKS) * TILE + n; }

// Calls `visit(local, row, half)` for each half row of the tiles of the residual stream that this block owns.
template <class Visit>
__device__ inline void each_owned(int hidden, int rows, Visit visit) {
#pragma unroll 1
  for (int o = threadIdx.x; o < tiles_of_block(hidden / TILE) * ROWS * 2; o += CONSUMERS) {
    const int half = o % 2, row = o / 2 % ROWS, local = o / 2 / ROWS;
    if (row < rows) visit(local, row, half);
  }
}

__device__ inline Origin origin_of(PhaseKind kind, int layer) {
  const Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  if (kind == reader_of(Buffer::attention)) return {nullptr, s.to.attention, z.attention, nullptr};
  if (kind == reader_of(Buffer::activation)) return {nullptr, s.to.activation, z.intermediate, nullptr};
  if (kind == reader_of(Buffer::hidden)) return {s.source, nullptr, 0, nullptr};
  const Source* first = kind == QKV && layer == 0 && s.source[0].given() ? s.source : nullptr;
  return {first, s.to.x, z.hidden, s.pass.norms + layer * z.norms + (kind == only(&PhaseType::norm, Norm::post) ? z.norms - z.hidden : 0)};
}

static_assert(all_with(&PhaseType::norm, Norm::none) == (1u << ATTENTION | 1u << OUT | 1u << DOWN | 1u << PROJECT | 1u << SUM) &&
              all_with(&PhaseType::norm, Norm::input) == 1u << QKV && all_with(&PhaseType::norm, Norm::final) == 1u << HEAD);
static_assert(all_with(&PhaseType::epilogue, Epilogue::add) == (1u << OUT | 1u << DOWN) &&
              all_with(&PhaseType::epilogue, Epilogue::scale) == (1u << QKV | 1u << HEAD));

// Finishes the sums of half a row: rows 4 * half ... of the tile; in a tile of gates, `up` are the other half.
__device__ inline void finish(PhaseKind kind, int local, int row, int half, float4 value, float4 up) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const int column = owned_column(local, half * 4);
  const u32 tag = tag_of_phase(1);
  if (kind == OUT || kind == DOWN) {
    float4& residual = four(&s.residual[local][row][half * 4]);
    residual = residual + value;
    publish_quad(s.to.x + row * z.hidden + column, residual, tag);
  } else if (kind == only(&PhaseType::epilogue, Epilogue::bias)) {
    four(s.to.projected + row * z.hidden + column) = value + four(const_cast<float*>(s.to.projection_bias) + column);
  } else {
    value = value * norm_factor(row);
    if (kind == only(&PhaseType::epilogue, Epilogue::swiglu)) {
      const auto [low, high] = gated(value, up * norm_factor(row));
      const int at = (int(blockIdx.x) + local * BLOCKS) * (TILE / 2);
      publish_quad(s.to.activation + row * z.intermediate + at,
                {low_half(low), high_half(low), low_half(high), high_half(high)}, tag);
    } else if (kind == writer_of(Buffer::qkv)) {
      publish_quad(s.to.qkv + row * z.qkv + column, value, tag);
    } else if (s.logits[row]) {
      four(s.logits[row] + column) = value;
    }
  }
}

// The sums of one warp for a tile.
struct Sums {
  float upper[4] = {}, lower[4] = {};

  // One column block. Each half of the operand's rows is the same eight rows at other columns: of the first product the upper
  // half counts, of the second the lower one.
  __device__ void add(const uint4& x, const uint4& w) {
    mma(upper, x.x, x.y, x.z, x.w, w.x, w.y);
    mma(lower, x.x, x.y, x.z, x.w, w.z, w.w);
  }
  __device__ float2 pair() const { return {upper[0] + lower[2], upper[1] + lower[3]}; }
};

// Multiplies this block's tiles of a matrix. Each warp adds up its column blocks of every tile, then the warps' shares are
// added. False: leave the kernel.
__device__ inline bool multiply(PhaseKind kind, int layer, int columns, int count) {
  constexpr int SHARE = STAGE_COLUMNS / KBLOCK / WARPS;  // column blocks of a stage that a warp takes
  Shared& s = shared();
  ConsumerState& state = own_state();
  const Origin origin = origin_of(kind, layer);
  const int warp = own_thread() >> 5, lane = own_thread() & 31, shift = s.pass.shift;
  const int halves = kind == only(&PhaseType::epilogue, Epilogue::swiglu) ? 0 : 1;  // as a power of two
  const int room = OPERAND_COLUMNS * ROWS >> shift, apart = WARPS << shift + 2;
  const uint4* operand = &s.product.operand[(warp << shift + 2) + (lane & (4 << shift) - 1)];
  PipelineState ring = state.ring;
  int held = -1;
#pragma unroll 1
  for (int first = 0; first < count; first += GROUP_TILES) {
    const int tiles = min(GROUP_TILES, count - first);
    auto& partial = s.product.partial[state.buffer];
#pragma unroll 1
    for (int t = 0; t < tiles; t += 2) {
      const bool pair = t + 1 < tiles;
      const int stage_columns = pair ? STAGE_COLUMNS : 2 * STAGE_COLUMNS;
      Sums sums, others;
#pragma unroll 1
      for (int base = 0; base < columns; base += stage_columns) {
        const int begin = columns > room ? base - base % room : 0;
        if (begin != held) {
          load_operand(origin, begin, min(room, columns - begin), first + t == 0);
          if (held < 0 && threadIdx.x == 0) stamp(1);
          held = begin;
        }
        const int left = min(stage_columns, columns - base);
        const uint4* x = operand + ((base - begin) / KBLOCK << shift + 2);
        const uint4* stage = wait_for_stage(ring) + lane;
        int rest = left;
#pragma unroll 1
        for (; rest >= STAGE_COLUMNS; rest -= STAGE_COLUMNS, x += SHARE * apart, stage += SHARE * CONSUMERS) {
          const uint4* w = stage + warp * SHARE * 32;
          uint4 xs[SHARE], ws[SHARE];
#pragma unroll
          for (int j = 0; j < SHARE; ++j) ws[j] = load_matrices(w + j * 32), xs[j] = x[j * apart];
#pragma unroll
          for (int j = 0; j < SHARE; ++j) sums.add(xs[j], ws[j]);
          if (!pair) continue;
#pragma unroll
          for (int j = 0; j < SHARE; ++j) ws[j] = load_matrices(w + left + j * 32);  // the other tile's
#pragma unroll
          for (int j = 0; j < SHARE; ++j) others.add(xs[j], ws[j]);
        }
#pragma unroll 1
        for (int block = warp; block < rest / KBLOCK; block += WARPS, x += apart) {
          sums.add(*x, load_matrices(stage + block * 32));
          if (pair) others.add(*x, load_matrices(stage + left + block * 32));
        }
        release_stage(ring);
      }
      float2* share = reinterpret_cast<float2*>(&partial[warp][t][lane >> 2][(lane & 3) * 2]);
      *share = sums.pair();
      if (pair) share[ROWS * TILE / 2] = others.pair();
    }
    consumer_sync();
    if (!all_arrived()) return false;
#pragma unroll 1
    for (int o = threadIdx.x; o < tiles << shift + halves; o += CONSUMERS) {
      const int half = o & halves, row = o >> halves & ((1 << shift) - 1), t = o >> halves + shift;
      if (row >= s.pass.rows) continue;
      float4 value{}, up{};
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float4* sums = reinterpret_cast<const float4*>(partial[w][t][row]);
        value = value + sums[half];
        if (halves == 0) up = up + sums[1];
      }
      finish(kind, first + t, row, half, value, up);
    }
    __syncwarp();
    if (lane == 0) state.buffer ^= 1, state.ring = ring;
    __syncwarp();
  }
  return true;
}

// The residual stream of this block's columns at the start of a stack, where the block does not hold it already.
__device__ inline void open_residual() {
  Shared& s = shared();
  each_owned(s.pass.sizes.hidden, s.pass.rows, [&](int local, int row, int half) {
    const Source& source = s.source[row];
    const int column = owned_column(local, half * 4);
    float4& residual = four(&s.residual[local][row][half * 4]);
    if (source.values) residual = __ldcg(reinterpret_cast<const float4*>(source.values + column));
    if (source.table) residual = widen_four(source.table + column);
  });
}

// One phase: work that needs no results of other blocks is done before waiting for them.
__device__ __forceinline__ bool product(PhaseKind kind, int layer) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const Extent extent(kind, z);
  const int count = tiles_of_block(extent.tiles);
  if (layer == 0 && kind == OUT) open_residual();
  if (count > 0) {
    if (!multiply(kind, layer, extent.columns, count)) return false;
  } else {
    consumer_sync();
  }
  return end_phase(count > 0);
}

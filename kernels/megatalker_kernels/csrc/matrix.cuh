// Matrix times activations: the block's tiles of eight weight rows, streamed through the ring, on tensor cores. One
// routine serves every matrix of both stacks: a frame is too short to load code for each.
#pragma once
#include "activation.cuh"
#include "handover.cuh"
#include "pipeline.cuh"

struct Extent {
  int columns, tiles;

  __device__ Extent(Kind kind, const Sizes& z) {
    columns = kind == OUT ? z.attention : kind == DOWN ? z.intermediate : kind == PROJECT ? Talker::HIDDEN : z.hidden;
    const int rows = kind == QUERIES_KEYS_VALUES ? z.qkv
                     : kind == GATE_AND_UP       ? 2 * z.intermediate
                     : kind == HEAD              ? z.vocab
                                                 : z.hidden;
    tiles = rows / TILE;
  }
};

__device__ inline int tiles_of_block(int tiles) { return (tiles - int(blockIdx.x) + BLOCKS - 1) / BLOCKS; }

// The column of a block's own `local`-th tile.
__device__ inline int owned_column(int local, int n) { return (int(blockIdx.x) + local * BLOCKS) * TILE + n; }

// Calls `visit(local, row, n)` for each element of the residual stream that this block owns.
template <class Visit>
__device__ inline void each_owned(int hidden, int rows, Visit visit) {
#pragma unroll 1
  for (int o = threadIdx.x; o < tiles_of_block(hidden / TILE) * ROWS * TILE; o += CONSUMERS) {
    const int n = o % TILE, row = o / TILE % ROWS, local = o / TILE / ROWS;
    if (row < rows) visit(local, row, n);
  }
}

// The activations of columns [begin, begin + size).
__device__ inline void bring_operand(Kind kind, int begin, int size, bool count_squares) {
  const Shared& s = shared();
  if (kind == OUT) {
    bring(s.to.attention, s.pass.sizes.attention, begin, size);
  } else if (kind == DOWN) {
    bring(s.to.activation, s.pass.sizes.intermediate, begin, size);
  } else {
    bring_normed(begin, size, count_squares);
  }
}

// What becomes of a sum: `value` is that of row n of the tile; in a tile of gates, `up` is that of row n + 4.
__device__ inline void finish(Kind kind, int local, int row, int n, float value, float up) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const int column = owned_column(local, n);
  if (kind == OUT || kind == DOWN) {
    const float sum = s.residual[local][row][n] + value;
    s.residual[local][row][n] = sum;
    s.to.x[row * z.hidden + column] = sum;
  } else if (kind == PROJECT) {
    s.to.projected[row * z.hidden + column] = value + s.to.projection_bias[column];
  } else {
    const float factor = norm_factor(row);
    if (kind == GATE_AND_UP) {
      const float gate = value * factor;
      const int at = (int(blockIdx.x) + local * BLOCKS) * (TILE / 2) + n;
      s.to.activation[row * z.intermediate + at] = narrow(__fdividef(gate, 1.f + __expf(-gate)) * (up * factor));
    } else if (kind == QUERIES_KEYS_VALUES) {
      s.to.qkv[row * z.qkv + column] = value * factor;
    } else if (s.logits[row]) {
      s.logits[row][column] = value * factor;
    }
  }
}

// One column block. Each half of the operand's rows is the same eight rows at other columns: of the first product the upper
// half counts, of the second the lower one.
__device__ inline void add_block(float (&upper)[4], float (&lower)[4], const uint4& x, const uint4& w) {
  mma(upper, x.x, x.y, x.z, x.w, w.x, w.y);
  mma(lower, x.x, x.y, x.z, x.w, w.z, w.w);
}

// The warp's share of one tile: its sum over all columns.
__device__ inline void add_up(Kind kind, int columns, int tile, bool first_tile, int& held, Cursor& at) {
  constexpr int SHARE = STAGE_COLUMNS / KBLOCK / WARPS;
  Shared& s = shared();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, shift = s.pass.shift + 2;
  const uint4* operand = &s.product.operand[(warp << shift) + (lane & ((1 << shift) - 1))];
  const int apart = WARPS << shift;
  float upper[2][4] = {}, lower[2][4] = {};
#pragma unroll 1
  for (int base = 0; base < columns; base += STAGE_COLUMNS) {
    const int begin = OPERAND_COLUMNS < MAX_COLUMNS ? base - base % OPERAND_COLUMNS : 0;
    if (begin != held) {
      bring_operand(kind, begin, min(OPERAND_COLUMNS, columns - begin), first_tile);
      held = begin;
    }
    const int blocks = min(SHARE, ((columns - base) / KBLOCK - warp + WARPS - 1) / WARPS);
    const uint4* x = operand + ((base - begin) / KBLOCK << shift);
    const uint4* w = wait_for_stage(at) + warp * 32 + lane;
    if (blocks == SHARE) {
      uint4 xs[SHARE], ws[SHARE];
#pragma unroll
      for (int j = 0; j < SHARE; ++j) ws[j] = w[j * WARPS * 32], xs[j] = x[j * apart];
#pragma unroll
      for (int j = 0; j < SHARE; ++j) add_block(upper[j % 2], lower[j % 2], xs[j], ws[j]);
    } else {
#pragma unroll 1
      for (int j = 0; j < blocks; ++j) add_block(upper[0], lower[0], x[j * apart], w[j * WARPS * 32]);
    }
    release_stage(at);
  }
  *reinterpret_cast<float2*>(&s.product.partial[warp][tile][lane >> 2][(lane & 3) * 2]) =
      float2{(upper[0][0] + lower[0][2]) + (upper[1][0] + lower[1][2]),
             (upper[0][1] + lower[0][3]) + (upper[1][1] + lower[1][3])};
}

// Multiplies this block's tiles of a matrix.
__device__ inline void multiply(Kind kind, Extent extent) {
  Shared& s = shared();
  Cursor at = s.cursor[threadIdx.x >> 5];
  const int count = tiles_of_block(extent.tiles), shift = s.pass.shift;
  int held = -1;
#pragma unroll 1
  for (int first = 0; first < count; first += GROUP_TILES) {
    const int tiles = min(GROUP_TILES, count - first);
    if (first > 0) consumer_sync();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) add_up(kind, extent.columns, t, first + t == 0, held, at);
    consumer_sync();
    const bool pairs = kind == GATE_AND_UP;
#pragma unroll 1
    for (int o = threadIdx.x; o < tiles * TILE << shift; o += CONSUMERS) {
      const int n = o % TILE, row = o / TILE & ((1 << shift) - 1), t = o / TILE >> shift;
      if (row >= s.pass.rows || (pairs && n >= TILE / 2)) continue;
      float value = 0, up = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float* sums = s.product.partial[w][t][row];
        value += sums[n];
        if (pairs) up += sums[n + TILE / 2];
      }
      finish(kind, first + t, row, n, value, up);
    }
  }
  __syncwarp();
  if ((threadIdx.x & 31) == 0) s.cursor[threadIdx.x >> 5] = at;
}

// The residual stream of this block's columns at the start of a stack.
__device__ inline void open_residual() {
  Shared& s = shared();
  each_owned(s.pass.sizes.hidden, s.pass.rows, [&](int local, int row, int n) {
    const Source& source = s.source[row];
    const int column = owned_column(local, n);
    s.residual[local][row][n] = source.values ? __ldcg(source.values + column) : widen(source.table[column]);
  });
}

// One phase: what needs no other block's results is done before waiting for them.
__device__ __forceinline__ bool product(Kind kind, int layer) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const Extent extent(kind, z);
  if (kind == QUERIES_KEYS_VALUES || kind == GATE_AND_UP || kind == HEAD) {
    const int offset = kind == GATE_AND_UP ? z.norms - z.hidden : 0;
    prefetch_norm(s.pass.norms + layer * z.norms + offset, z.hidden);
  } else if (kind == PROJECT) {
    for (int i = threadIdx.x; i < Talker::HIDDEN; i += CONSUMERS) s.norm[i] = 1.f;
    consumer_sync();
  }
  if (layer == 0 && kind == OUT) open_residual();
  if (layer == 0 && kind == GATE_AND_UP && threadIdx.x < s.pass.rows) {
    s.source[threadIdx.x] = Source{s.to.x + threadIdx.x * z.hidden, nullptr};
  }
  if (!proceed()) return false;
  if (tiles_of_block(extent.tiles) > 0) multiply(kind, extent);
  return true;
}

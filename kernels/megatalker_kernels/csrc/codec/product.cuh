// Every matrix product and every convolution of the decoder: rows times weights, where a row is a window of `taps` input
// rows that lie `dilation` apart and end with the row itself. Tiles of both operands pass through a ring in shared memory.
#pragma once
#include "epilogue.cuh"
#include "numbers.cuh"
#include "ticket.cuh"

struct Product {
  Input in;
  Epilogue epilogue;
  Tickets tickets;
  const float* weight;  // [columns, taps, channels], packed
  float* partial;       // [shares, rows, columns], for sums of more than one share
  int* arrivals;        // [tiles] zeros, left as zeros
  int taps, dilation;
  int shares;  // the window's columns are divided among so many blocks
  float eps;   // of root-mean-square normalisation of the input; none if negative
};

// Threads of a block: WIDE warps along the weight rows, HIGH along the input rows, DEEP along the window's columns.
template <int ROWS_, int COLUMNS_, int HIGH_, int WIDE_, int DEEP_, int DEPTH_, int STAGES_>
struct Tile {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, HIGH = HIGH_, WIDE = WIDE_, DEEP = DEEP_, STAGES = STAGES_;
  static constexpr int THREADS = 32 * HIGH * WIDE * DEEP;
  static constexpr int VECTORS = DEPTH_ / 4;                // 16-byte vectors of a row in one stage
  static constexpr int STAGE = (ROWS + COLUMNS) * VECTORS;  // vectors
  static constexpr int GROUPS = DEPTH_ / 16 / DEEP;        // of sixteen columns, for one warp in one stage
  static constexpr int EIGHTS = ROWS / HIGH / 8, SIXTEENS = COLUMNS / WIDE / 16;  // of a warp
  static constexpr int LINES = THREADS / VECTORS;  // rows that all threads together copy at a time
  static constexpr int PITCH = COLUMNS + 4;       // floats between rows of sums
  static constexpr int RING = STAGES * STAGE * 16, SUMS = DEEP * ROWS * (PITCH + 1) * 4;
  static constexpr int SHARED = RING > SUMS ? RING : SUMS;  // bytes
  static_assert(GROUPS * 16 * DEEP == DEPTH_ && EIGHTS * 8 * HIGH == ROWS && SIXTEENS * 16 * WIDE == COLUMNS);
  static_assert(ROWS % LINES == 0 && COLUMNS % LINES == 0 && VECTORS >= 8);
};

// Lanes 0 to 7 read four vectors of each of two rows: they shall lie in different banks.
template <class T>
__device__ inline int place(int row, int vector) {
  return row * T::VECTORS + (vector ^ (row & 1) * 4);
}

// Brings the stages of one share, each thread always the same vector of the same lines.
template <class T>
struct TileLoader {
  const Product& p;
  const float* row[T::ROWS / T::LINES];     // of the input
  const float* before[T::ROWS / T::LINES];  // where it would stand if the context went on
  int time[T::ROWS / T::LINES];             // within its stream; negative beyond the last row
  int line = threadIdx.x / T::VECTORS, vector = threadIdx.x % T::VECTORS;
  int n0, width, weight_column, tap, channel;

  __device__ TileLoader(const Product& p, int m0, int n0, int begin) : p(p), n0(n0), width(p.taps * p.in.channels) {
    weight_column = begin + vector * 4, tap = weight_column / p.in.channels, channel = weight_column % p.in.channels;
#pragma unroll
    for (int i = 0; i < T::ROWS / T::LINES; ++i) {
      const int m = m0 + line + i * T::LINES;
      const bool exists = m < p.in.rows;
      const int stream = exists ? m / p.in.time : 0;
      time[i] = exists ? m % p.in.time : -1;
      row[i] = p.in.data + i64(exists ? m : 0) * p.in.channels;
      before[i] = p.taps == 1 ? row[i]
                              : p.tickets[stream].now + p.in.slot + i64(p.in.context + time[i]) * p.in.channels;
    }
  }

  __device__ void load_weights(float4* stage) {
    stage += T::ROWS * T::VECTORS;
#pragma unroll
    for (int i = 0; i < T::COLUMNS / T::LINES; ++i) {
      const int n = n0 + line + i * T::LINES;
      const bool wanted = weight_column < width && n < p.epilogue.columns;
      const float* const source = wanted ? p.weight + i64(n) * width + weight_column : p.weight;
      copy_async_16(&stage[place<T>(line + i * T::LINES, vector)], source, wanted);
    }
    weight_column += T::VECTORS * 4;
  }

  __device__ void load_rows(float4* stage) {
    const int ago = (p.taps - 1 - tap) * p.dilation, offset = channel - ago * p.in.channels;
#pragma unroll
    for (int i = 0; i < T::ROWS / T::LINES; ++i) {
      const bool wanted = tap < p.taps && time[i] >= 0;
      const float* const source = (time[i] >= ago ? row[i] : before[i]) + offset;
      copy_async_16(&stage[place<T>(line + i * T::LINES, vector)], wanted ? source : p.weight, wanted);
    }
    channel += T::VECTORS * 4;
    while (channel >= p.in.channels && tap < p.taps) channel -= p.in.channels, ++tap;
  }
};

// One warp's part of a tile.
template <class T>
struct Sums {
  float value[T::SIXTEENS][T::EIGHTS][4] = {};
  float squares[T::EIGHTS] = {};
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int deep = warp % T::DEEP, m = warp / T::DEEP / T::WIDE * (T::EIGHTS * 8), n = warp / T::DEEP % T::WIDE * (T::SIXTEENS * 16);

  __device__ void add(const float4* stage, bool normalize) {
    const float4* weights = stage + T::ROWS * T::VECTORS;
    // Tensor cores cut off what they add to a sum: they add up one stage, the rest is rounded as float32 is.
    Numbers::Sum sum[T::SIXTEENS][T::EIGHTS] = {};
#pragma unroll
    for (int group = 0; group < T::GROUPS; ++group) {
      // A lane's sixteen bytes are four of the group's columns, the same four of both operands.
      const int vector = (deep * T::GROUPS + group) * 4 + lane % 4;
      Numbers::Four x[T::EIGHTS];
#pragma unroll
      for (int j = 0; j < T::EIGHTS; ++j) {
        x[j] = Numbers::unpack(stage[place<T>(m + j * 8 + lane / 4, vector)]);
        if (normalize) squares[j] += Numbers::squares(x[j]);
      }
#pragma unroll
      for (int i = 0; i < T::SIXTEENS; ++i) {
        const auto upper = Numbers::unpack(weights[place<T>(n + i * 16 + lane / 4, vector)]);
        const auto lower = Numbers::unpack(weights[place<T>(n + i * 16 + 8 + lane / 4, vector)]);
#pragma unroll
        for (int pass = 0; pass < Numbers::PASSES; ++pass)
#pragma unroll
          for (int j = 0; j < T::EIGHTS; ++j) Numbers::multiply(sum[i][j], pass, upper, lower, x[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < T::SIXTEENS; ++i)
#pragma unroll
      for (int j = 0; j < T::EIGHTS; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) value[i][j][k] += sum[i][j][k];
  }

  // Into `sums` [DEEP][ROWS][PITCH] and `total` [DEEP][ROWS].
  __device__ void put(float* sums, float* total) {
#pragma unroll
    for (int j = 0; j < T::EIGHTS; ++j) {
      const int row = deep * T::ROWS + m + j * 8;
#pragma unroll
      for (int i = 0; i < T::SIXTEENS; ++i) {
        float* at = sums + (row + lane % 4 * 2) * T::PITCH + n + i * 16 + lane / 4;
        at[0] = value[i][j][0], at[T::PITCH] = value[i][j][1];
        at[8] = value[i][j][2], at[T::PITCH + 8] = value[i][j][3];
      }
      float square = squares[j];
      square += __shfl_xor_sync(0xffffffffu, square, 1);
      square += __shfl_xor_sync(0xffffffffu, square, 2);
      if (n == 0 && lane % 4 == 0) total[row + lane / 4] = square;
    }
  }
};

// The block's share has been added up in shared memory: finish it, or leave that to the block that comes last.
template <class T>
__device__ inline void finish_tile(const Product& p, int m0, int n0, int tile, int share, const float* sums, const float* total) {
  __shared__ bool last;
  const int rows = p.in.rows, columns = p.epilogue.columns;
  for (int i = threadIdx.x; i < T::ROWS * T::COLUMNS / 4; i += T::THREADS) {
    const int m = i / (T::COLUMNS / 4), n = i % (T::COLUMNS / 4) * 4;
    if (m0 + m >= rows || n0 + n >= columns) continue;
    float4 v = float4_at(sums, m * T::PITCH + n);
#pragma unroll
    for (int deep = 1; deep < T::DEEP; ++deep) v = v + float4_at(sums, (deep * T::ROWS + m) * T::PITCH + n);
    if (p.eps >= 0) {
      float square = 0;
#pragma unroll
      for (int deep = 0; deep < T::DEEP; ++deep) square += total[deep * T::ROWS + m];
      const float factor = 1.f / sqrtf(square / p.in.channels + p.eps);
      v = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    }
    if (p.shares == 1) {
      p.epilogue(m0 + m, n0 + n, v);
    } else {
      *reinterpret_cast<float4*>(p.partial + (i64(share) * rows + m0 + m) * columns + n0 + n) = v;
    }
  }
  if (p.shares == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&p.arrivals[tile], 1) == p.shares - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < T::ROWS * T::COLUMNS / 4; i += T::THREADS) {
    const int m = m0 + i / (T::COLUMNS / 4), n = n0 + i % (T::COLUMNS / 4) * 4;
    if (m >= rows || n >= columns) continue;
    float4 v = {0, 0, 0, 0};
#pragma unroll 4
    for (int s = 0; s < p.shares; ++s)
      v = v + __ldcg(reinterpret_cast<const float4*>(p.partial + (i64(s) * rows + m) * columns + n));
    p.epilogue(m, n, v);
  }
  if (threadIdx.x == 0) p.arrivals[tile] = 0;
}

// Blocks: column tiles, within row tiles, within shares.
template <class T>
__device__ inline void multiply(const Product& p) {
  extern __shared__ float4 ring[];
  const int wide = (p.epilogue.columns + T::COLUMNS - 1) / T::COLUMNS, high = (p.in.rows + T::ROWS - 1) / T::ROWS;
  const int tile = blockIdx.x % (wide * high), share = blockIdx.x / (wide * high);
  const int m0 = tile / wide * T::ROWS, n0 = tile % wide * T::COLUMNS;
  const int stages = (p.taps * p.in.channels + T::VECTORS * 4 - 1) / (T::VECTORS * 4);
  const int begin = i64(stages) * share / p.shares, end = i64(stages) * (share + 1) / p.shares;

  admit_successor();
  TileLoader<T> loader(p, m0, n0, begin * T::VECTORS * 4);
#pragma unroll
  for (int i = 0; i < T::STAGES - 1; ++i)
    if (begin + i < end) loader.load_weights(ring + i * T::STAGE);
  await_predecessor();
#pragma unroll
  for (int i = 0; i < T::STAGES - 1; ++i) {
    if (begin + i < end) loader.load_rows(ring + i * T::STAGE);
    end_group();
  }
  if (p.taps > 1) p.in.remember(p.tickets);
  Sums<T> sums;
  for (int i = begin, now = 0, free = T::STAGES - 1; i < end; ++i) {
    await_groups<T::STAGES - 2>();
    __syncthreads();
    if (i + T::STAGES - 1 < end) {
      loader.load_weights(ring + free * T::STAGE);
      loader.load_rows(ring + free * T::STAGE);
    }
    end_group();
    sums.add(ring + now * T::STAGE, p.eps >= 0);
    free = now, now = now + 1 == T::STAGES ? 0 : now + 1;
  }
  __syncthreads();
  float* const added = reinterpret_cast<float*>(ring);
  float* const total = added + T::DEEP * T::ROWS * T::PITCH;
  sums.put(added, total);
  __syncthreads();
  finish_tile<T>(p, m0, n0, tile, share, added, total);
}

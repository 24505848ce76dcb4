// Tiles that warps multiply, each a part of its own, from fragments in registers.
#pragma once
#include "product.cuh"

template <class T>
struct TileLoader;
template <class T>
struct WarpSums;

// Threads of a block: WIDE warps along the weight rows, HIGH along the input rows, DEEP along the window's columns.
template <int ROWS_, int COLUMNS_, int HIGH_, int WIDE_, int DEEP_, int DEPTH_, int STAGES_>
struct Tile {
  using Loader = TileLoader<Tile>;
  using Sums = WarpSums<Tile>;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, HIGH = HIGH_, WIDE = WIDE_, DEEP = DEEP_, STAGES = STAGES_;
  static constexpr int THREADS = 32 * HIGH * WIDE * DEEP;
  static constexpr int VECTORS = DEPTH_ / 4;                // 16-byte vectors of a row in one stage
  static constexpr int STAGE = (ROWS + COLUMNS) * VECTORS;  // vectors
  static constexpr int GROUPS = DEPTH_ / 16 / DEEP;         // of sixteen columns, for one warp in one stage
  static constexpr int EIGHTS = ROWS / HIGH / 8, SIXTEENS = COLUMNS / WIDE / 16;  // of a warp
  static constexpr int LINES = THREADS / VECTORS;  // rows that all threads together copy at a time
  static constexpr int PITCH = COLUMNS + 4;       // floats between rows of sums
  static constexpr int LINE_ROWS = (ROWS * (COLUMNS / 8) + THREADS - 1) / THREADS;
  static constexpr int TOGETHER = LINE_ROWS < 4 ? LINE_ROWS : 4;  // rows that a thread finishes at the same time
  static constexpr int RING = STAGES * STAGE * 16, SUMS = DEEP * ROWS * (PITCH + 1) * 4;
  static constexpr int SHARED = RING > SUMS ? RING : SUMS;  // bytes
  static_assert(GROUPS * 16 * DEEP == DEPTH_ && EIGHTS * 8 * HIGH == ROWS && SIXTEENS * 16 * WIDE == COLUMNS);
  static_assert(ROWS % LINES == 0 && COLUMNS % LINES == 0 && VECTORS >= 8);

  __device__ static int stages(const Product& p) { return (p.taps * p.in.words + DEPTH_ - 1) / DEPTH_; }
};

// Lanes 0 to 7 read four vectors of each of two rows, or lanes 0 to 15 halves of every other vector of four rows: they shall lie
// in different banks.
__device__ inline int swizzle(int row) { return (row & 1) * 4 ^ (row >> 1 & 1); }

template <class T>
__device__ inline int place(int row, int vector) {
  return row * T::VECTORS + (vector ^ swizzle(row));
}

template <class T>
__device__ inline Numbers::Fragment unpack(const float4* stage, int row, int number) {
  return Numbers::unpack(stage + row * T::VECTORS, number, swizzle(row));
}

// Brings the stages of one share, each thread always the same vector of the same lines.
template <class T>
struct TileLoader {
  const Product& p;
  const float* row[T::ROWS / T::LINES];     // of the input
  const float* before[T::ROWS / T::LINES];  // where it would stand if the context went on
  int time[T::ROWS / T::LINES];             // within its stream; negative beyond the last row
  int line = threadIdx.x / T::VECTORS, vector = threadIdx.x % T::VECTORS;
  int n0, width, weight_word, tap, word;

  __device__ TileLoader(const Product& p, int m0, int n0, int begin) : p(p), n0(n0), width(p.taps * p.in.words) {
    weight_word = (begin * T::VECTORS + vector) * 4, tap = weight_word / p.in.words, word = weight_word % p.in.words;
#pragma unroll
    for (int i = 0; i < T::ROWS / T::LINES; ++i) {
      const int m = m0 + line + i * T::LINES;
      const bool exists = m < p.in.rows;
      const int stream = exists ? m / p.in.time : 0;
      time[i] = exists ? m % p.in.time : -1;
      row[i] = p.in.data + i64(exists ? m : 0) * p.in.words;
      before[i] = p.taps == 1 ? row[i]
                              : p.tickets[stream].now + p.in.slot + i64(p.in.context + time[i]) * p.in.words;
    }
  }

  __device__ void await_weights(int) {}  // they come with the rows
  __device__ void prefetch_residual(int, int) {}

  __device__ void load_weights(float4* stage) {
    stage += T::ROWS * T::VECTORS;
#pragma unroll
    for (int i = 0; i < T::COLUMNS / T::LINES; ++i) {
      const int n = n0 + line + i * T::LINES;
      const bool wanted = weight_word < width && n < p.epilogue.columns;
      const float* const source = wanted ? p.weight + i64(n) * width + weight_word : p.weight;
      copy_async_16(&stage[place<T>(line + i * T::LINES, vector)], source, wanted);
    }
    weight_word += T::VECTORS * 4;
  }

  __device__ void load_rows(float4* stage) {
    const int ago = (p.taps - 1 - tap) * p.dilation, offset = word - ago * p.in.words;
#pragma unroll
    for (int i = 0; i < T::ROWS / T::LINES; ++i) {
      const bool wanted = tap < p.taps && time[i] >= 0;
      const float* const source = (time[i] >= ago ? row[i] : before[i]) + offset;
      copy_async_cached_16(&stage[place<T>(line + i * T::LINES, vector)], wanted ? source : p.weight, wanted);
    }
    word += T::VECTORS * 4;
    while (word >= p.in.words && tap < p.taps) word -= p.in.words, ++tap;
  }
};

// One warp's part of a tile.
template <class T>
struct WarpSums {
  float value[T::SIXTEENS][T::EIGHTS][4] = {};
  float squares[T::EIGHTS] = {};
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int deep = warp % T::DEEP, m = warp / T::DEEP / T::WIDE * (T::EIGHTS * 8), n = warp / T::DEEP % T::WIDE * (T::SIXTEENS * 16);

  __device__ void begin(const float4*) {}

  __device__ void end(const float4* stage, bool normalize) {
    const float4* weights = stage + T::ROWS * T::VECTORS;
    // Tensor cores cut off what they add to a sum: they add up one stage, the rest is rounded as float32 is.
    Numbers::Sum sum[T::SIXTEENS][T::EIGHTS] = {};
#pragma unroll
    for (int group = 0; group < T::GROUPS; ++group) {
      // A lane reads four of the group's columns, the same four of both operands.
      const int number = (deep * T::GROUPS + group) * 4 + lane % 4;
      Numbers::Fragment x[T::EIGHTS];
#pragma unroll
      for (int j = 0; j < T::EIGHTS; ++j) {
        x[j] = unpack<T>(stage, m + j * 8 + lane / 4, number);
        if (normalize) squares[j] += Numbers::squares(x[j]);
      }
#pragma unroll
      for (int i = 0; i < T::SIXTEENS; ++i) {
        const auto upper = unpack<T>(weights, n + i * 16 + lane / 4, number);
        const auto lower = unpack<T>(weights, n + i * 16 + 8 + lane / 4, number);
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

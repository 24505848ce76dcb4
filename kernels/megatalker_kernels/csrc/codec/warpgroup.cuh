// Tiles that the four warps of a block multiply together: tensor cores read both operands from shared memory (sm_90a).
#pragma once
#include "product.cuh"

template <class T>
struct WindowLoader;
template <class T, class Parts>
struct WarpgroupSums;

template <int ROWS_, int DEPTH_, int STAGES_>
struct WarpgroupTile {
  using Loader = WindowLoader<WarpgroupTile>;
  using Sums = WarpgroupSums<WarpgroupTile, Numbers>;
  static constexpr int ROWS = ROWS_, COLUMNS = WARPGROUP_COLUMNS, STAGES = STAGES_, DEEP = 1, THREADS = 128;
  static constexpr int DEPTH = DEPTH_;             // words of one tap in one stage
  static constexpr int VECTORS = DEPTH / 4;        // of a row, sixteen bytes each: float16 numbers of eight channels
  static constexpr int PANEL = ROWS + 1;           // from one vector of a row to the next: odd, for different banks
  static constexpr int WEIGHTS = VECTORS * PANEL;  // where those of a stage begin
  static constexpr int STAGE = WEIGHTS + VECTORS * COLUMNS;
  static constexpr int LINES = THREADS / VECTORS;  // rows that all threads together copy at a time
  static constexpr int PITCH = COLUMNS + 4;        // floats between rows of sums
  static constexpr int TOGETHER = 4;               // rows that a thread finishes at the same time
  static constexpr int RING = STAGES * STAGE * 16, SUMS = ROWS * (PITCH + 1) * 4;
  static constexpr int SHARED = RING > SUMS ? RING : SUMS;  // bytes

  // All taps of some channels come one after another, since they are mostly the same rows.
  __device__ static int stages(const Product& p) { return p.taps * ((p.in.words + DEPTH - 1) / DEPTH); }
};

// Brings the stages of one share, each thread always the same vector of the same lines.
template <class T>
struct WindowLoader {
  struct Line {
    const float* before;  // where the row would stand if the context went on
    int time;             // within its stream; negative beyond the last row
  };

  const Product& p;
  Line* lines;            // of the tile, in shared memory
  u64* arrivals;          // barriers for the weights of each slot of the ring, in shared memory
  int slot = 0;           // of the next stage's weights
  int arrived = 0;        // a bit for each slot: whether an odd number of stages have come
  const float4* weights;  // of the next stage
  const float* row;       // of the input: this thread's first line and vector
  int line = threadIdx.x / T::VECTORS, vector = threadIdx.x % T::VECTORS;
  int tap, word;  // of the next stage's rows
  int earliest;      // time of the tile's lines; 0 if they are of several streams, negative if the last do not exist

  __device__ WindowLoader(const Product& p, int m0, int n0, int begin) : p(p) {
    __shared__ Line tile_lines[T::ROWS];
    __shared__ u64 ring_arrivals[T::STAGES];
    lines = tile_lines, arrivals = ring_arrivals;
    if (threadIdx.x < T::STAGES) {
      mbarrier_init(&arrivals[threadIdx.x], 1);
      fence_async_shared();
    }
    weights = reinterpret_cast<const float4*>(p.weight) +
              (i64(n0 / T::COLUMNS) * T::stages(p) + begin) * (T::VECTORS * T::COLUMNS);
    row = p.in.data + i64(m0 + line) * p.in.words + vector * 4;
    tap = begin % p.taps, word = begin / p.taps * T::DEPTH;
    const int first = m0 % p.in.time;
    earliest = m0 + T::ROWS > p.in.rows ? -1 : first + T::ROWS > p.in.time ? 0 : first;
    for (int i = threadIdx.x; i < T::ROWS; i += T::THREADS) {
      const int m = m0 + i, stream = m / p.in.time;
      if (m >= p.in.rows) {
        lines[i] = {nullptr, -1};
      } else if (p.taps == 1) {
        lines[i] = {nullptr, 0};
      } else {
        const int time = m % p.in.time;
        lines[i] = {p.tickets[stream].now + p.in.slot + i64(p.in.context + time) * p.in.words, time};
      }
    }
    __syncthreads();
  }

  // Prefetches the numbers that the epilogue adds to the sums.
  __device__ void prefetch_residual(int m0, int n0) {
    const int m = m0 + threadIdx.x, n = min(T::COLUMNS, p.epilogue.columns - n0);
    if (m < p.in.rows) prefetch(p.epilogue.residual + i64(m) * p.epilogue.columns + n0, n * sizeof(float));
  }

  // They come in one piece, as they lie in memory.
  __device__ void load_weights(float4* stage) {
    constexpr int VECTORS = T::VECTORS * T::COLUMNS, BYTES = VECTORS * sizeof(float4);
    if (threadIdx.x == 0) {
      expect_bytes(&arrivals[slot], BYTES);
      copy_bulk(stage + T::WEIGHTS, weights, BYTES, &arrivals[slot]);
    }
    weights += VECTORS, slot = slot + 1 == T::STAGES ? 0 : slot + 1;
  }

  __device__ void await_weights(int slot) {
    wait_for(&arrivals[slot], arrived >> slot & 1);
    arrived ^= 1 << slot;
    fence_async_shared();
  }

  __device__ void load_rows(float4* stage) {
    const int ago = (p.taps - 1 - tap) * p.dilation, offset = word - ago * p.in.words;
    const bool exists = word + vector * 4 < p.in.words;
    float4* const target = stage + vector * T::PANEL + line;
    const float* source = row + offset;
#pragma unroll
    for (int i = 0; i < T::ROWS; i += T::LINES, source += T::LINES * p.in.words) {
      if (earliest >= ago) {
        copy_async_cached_16(target + i, exists ? source : p.weight, exists);
      } else {
        const Line own = lines[line + i];
        const bool wanted = exists && own.time >= 0;
        const float* const from = own.time >= ago ? source : own.before + offset + vector * 4;
        copy_async_cached_16(target + i, wanted ? from : p.weight, wanted);
      }
    }
    if (++tap == p.taps) tap = 0, word += T::DEPTH;
  }
};

// All sums of a tile: each warp has sixteen of 64 rows. `Parts`: of float16 numbers.
template <class T, class Parts>
struct WarpgroupSums {
  static constexpr int FRAGMENTS = T::ROWS / 64, TILES = T::COLUMNS / 8;
  float value[FRAGMENTS][TILES][4] = {};  // unused where the tensor cores' own sums are exact enough
  float sum[FRAGMENTS][TILES][4] = {};
  int stages = 0;  // in `sum`

  __device__ void begin(const float4* stage) {
    begin_warpgroup_products();
#pragma unroll
    for (int group = 0; group < T::DEPTH / 16; ++group) {
#pragma unroll
      for (int pass = 0; pass < Parts::PASSES; ++pass) {
        const int x = group * 4 + Parts::input_vector(pass), w = group * 4 + Parts::weight_vector(pass);
        const MatrixDescriptor weights(stage + T::WEIGHTS + w * T::COLUMNS, Parts::APART * T::COLUMNS, 8);
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i) {
          const MatrixDescriptor rows(stage + x * T::PANEL + i * 64, Parts::APART * T::PANEL, 8);
          multiply_warpgroup_f16(sum[i], rows, weights, group + pass + stages > 0);
        }
      }
    }
    end_warpgroup_products();
  }

  __device__ void end(const float4*, bool) {
    await_warpgroup_products();
    if (++stages == Parts::CUT_STAGES) round();
  }

  __device__ void round() {
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          has_changed(sum[i][j][k]);
          value[i][j][k] += sum[i][j][k];
        }
      }
    }
    stages = 0;
  }

  // Into `sums` [ROWS][PITCH].
  __device__ void put(float* sums, float*) {
    if (stages > 0 && Parts::CUT_STAGES > 0) round();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        auto& four = Parts::CUT_STAGES > 0 ? value[i][j] : sum[i][j];
        float* const at = sums + (i * 64 + warp * 16 + lane / 4) * T::PITCH + j * 8 + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < 4; ++k) has_changed(four[k]);
        *reinterpret_cast<float2*>(at) = {four[0], four[1]};
        *reinterpret_cast<float2*>(at + 8 * T::PITCH) = {four[2], four[3]};
      }
    }
  }
};

// Matrix times activations: the block's tiles of eight weight rows, streamed through the ring, on tensor cores.
#pragma once
#include "activation.cuh"
#include "handover.cuh"
#include "pipeline.cuh"

struct Partials {
  float value[WARPS][GROUP_TILES][ROWS][TILE];
};

__device__ inline void mma(float (&c)[4], u32 a0, u32 a2, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(0u), "r"(a2), "r"(0u), "r"(b0), "r"(b1));
}

__device__ inline int tiles_of_block(int tiles) { return (tiles - int(blockIdx.x) + BLOCKS - 1) / BLOCKS; }

// Multiplies this block's tiles of a [TILES * 8, K] matrix. `finish(tile, local, row, values)` is called by one thread
// for each (tile, row) pair with WIDTH results; `tile` counts over the matrix, `local` over this block's tiles.
template <int K, int TILES, int WIDTH, class Finish>
__device__ __forceinline__ void multiply(const Activations<K>& a, Reader& kept, Partials& partials, int rows,
                                         Finish finish) {
  Reader reader = kept;  // in registers
  constexpr int STAGES_OF_TILE = (K + STAGE_COLUMNS - 1) / STAGE_COLUMNS;
  constexpr int BLOCKS_OF_STAGE = STAGE_COLUMNS / KBLOCK;
  constexpr int SHARE = BLOCKS_OF_STAGE / WARPS;
  static_assert(BLOCKS_OF_STAGE % WARPS == 0);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int count = tiles_of_block(TILES);
#pragma unroll 1
  for (int first = 0; first < count; first += GROUP_TILES) {
    const int tiles = min(GROUP_TILES, count - first);
    if (first > 0) consumer_sync();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      float even[4] = {}, odd[4] = {};
#pragma unroll
      for (int s = 0; s < STAGES_OF_TILE; ++s) {
        const uint4* stage = reader.wait();
#pragma unroll
        for (int j = 0; j < SHARE; ++j) {
          constexpr int LAST = Activations<K>::BLOCKS_OF_WARP;
          const int i = s * SHARE + j;
          if (i < LAST && Activations<K>::inside(i)) {
            const uint4 w = stage[(j * WARPS + warp) * 32 + lane];
            const uint4 x = a.fragment[i < LAST ? i : 0];
            mma(even, x.x, x.y, w.x, w.y);
            mma(odd, x.z, x.w, w.z, w.w);
          }
        }
        reader.release();
      }
      float* out = &partials.value[warp][t][lane >> 2][(lane & 3) * 2];
      *reinterpret_cast<float2*>(out) = float2{even[0] + odd[0], even[1] + odd[1]};
    }
    consumer_sync();
    constexpr int PARTS = TILE / WIDTH;
#pragma unroll 1
    for (int o = threadIdx.x; o < tiles * rows * PARTS; o += CONSUMERS) {
      const int part = o % PARTS, row = o / PARTS % rows, t = o / PARTS / rows;
      float values[WIDTH];
#pragma unroll
      for (int n = 0; n < WIDTH; ++n) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += partials.value[w][t][row][part + n * PARTS];
        values[n] = sum;
      }
      const int local = first + t;
      finish(int(blockIdx.x) + local * BLOCKS, local, row, part, values);
    }
  }
  kept.at = reader.at;
  kept.alive = reader.alive;
}

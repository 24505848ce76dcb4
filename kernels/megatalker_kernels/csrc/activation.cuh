// Activations as the A operand of mma.m16n8k16: rows are streams, and each lane holds eight neighbouring columns.
#pragma once
#include "number.cuh"

// A row of the residual stream at the start of a stack: computed values, or an embedding from a table.
struct Source {
  const float* values;  // or null:
  const u16* table;

  __device__ Eight eight(int column) const {
    return values ? load_eight(values + column) : load_eight(table + column);
  }
  __device__ float one(int column) const { return values ? __ldcg(values + column) : widen(table[column]); }
};

// One warp's share of the columns: blocks warp, warp + WARPS, ...
template <int K>
struct Activations {
  static constexpr int BLOCKS_OF_WARP = (K / KBLOCK + WARPS - 1) / WARPS;
  uint4 fragment[BLOCKS_OF_WARP];

  __device__ static int column(int i) {
    const int lane = threadIdx.x & 31;
    return (i * WARPS + int(threadIdx.x >> 5)) * KBLOCK + (lane & 3) * 8;
  }
  __device__ static bool inside(int i) { return (i * WARPS + int(threadIdx.x >> 5)) < K / KBLOCK; }

  // bfloat16 values [rows][K].
  __device__ void load(const u16* values, int rows) {
    const int row = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int i = 0; i < BLOCKS_OF_WARP; ++i) {
      const bool live = row < rows && inside(i);
      fragment[i] = live ? __ldcg(reinterpret_cast<const uint4*>(values + row * K + column(i))) : uint4{0, 0, 0, 0};
    }
  }

  // RMSNorm without its row factor, which the epilogue multiplies in: value * weight, and the warp's share of each
  // row's sum of squares.
  __device__ void load_normed(const Source& source, const float* weight, bool live_row, float* squares) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS_OF_WARP; ++i) {
      fragment[i] = uint4{0, 0, 0, 0};
      if (live_row && inside(i)) {
        const Eight x = source.eight(column(i));
        const float4 wa = __ldg(reinterpret_cast<const float4*>(weight + column(i)));
        const float4 wb = __ldg(reinterpret_cast<const float4*>(weight + column(i)) + 1);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(x.v[j], x.v[j], sum);
        fragment[i] = uint4{pack(x.v[0] * wa.x, x.v[1] * wa.y), pack(x.v[2] * wa.z, x.v[3] * wa.w),
                            pack(x.v[4] * wb.x, x.v[5] * wb.y), pack(x.v[6] * wb.z, x.v[7] * wb.w)};
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int lane = threadIdx.x & 31;
    if ((lane & 3) == 0) squares[(threadIdx.x >> 5) * ROWS + (lane >> 2)] = sum;
  }

  // Plain values, rounded.
  __device__ void load_plain(const Source& source, bool live_row) {
#pragma unroll
    for (int i = 0; i < BLOCKS_OF_WARP; ++i) {
      fragment[i] = uint4{0, 0, 0, 0};
      if (live_row && inside(i)) {
        const Eight x = source.eight(column(i));
        fragment[i] = uint4{pack(x.v[0], x.v[1]), pack(x.v[2], x.v[3]), pack(x.v[4], x.v[5]), pack(x.v[6], x.v[7])};
      }
    }
  }
};

// 1 / rms of a row from the warps' shares.
__device__ inline float norm_factor(const float* squares, int row, int size, float eps) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) sum += squares[warp * ROWS + row];
  return rsqrtf(sum / size + eps);
}

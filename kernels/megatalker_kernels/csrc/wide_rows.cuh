// Rows of the residual stream on their way into products: as operand, and by what is known of their norm.
#pragma once
#include "number.cuh"
#include "wide_shared.cuh"

// Where an operand has columns `column` ... of a row: a column block of eight rows is a fragment of mma.m16n8k16.
__device__ inline Operand* operand_at(Operand* operand, int row, int column) {
  return operand + (u64(column / KBLOCK) * wide_shared().wide.padded + row) * KBLOCK + column % KBLOCK;
}

// Four columns of a row, times the weights of the norm in front of the next product; or as they are, if it has none. Eight
// neighbouring lanes have a column block; if not `there`, it stays out.
__device__ inline void put_operand(bool there, int row, int column, float4 x, const float* norm) {
  const WideBuffers& wide = wide_shared().wide;
  x = without_tags(x);
  const float squares = sum_of_eight(sum_of_squares(x));
  if (!there) return;
  if (norm) {
    x = x * __ldg(reinterpret_cast<const float4*>(norm + column));
    if (column % KBLOCK == 0) wide.squares[row * (MAX_HIDDEN / KBLOCK) + column / KBLOCK] = squares;
  }
  *reinterpret_cast<uint2*>(operand_at(wide.operand, row, column)) = {pack(x.x, x.y), pack(x.z, x.w)};
}

// 1 / rms of a row, added up as the megakernel's warps do.
__device__ inline float norm_factor(int row) {
  const WideShared& s = wide_shared();
  const float* squares = s.wide.squares + row * (MAX_HIDDEN / KBLOCK);
  const int blocks = s.pass.sizes.hidden / KBLOCK;
  float4 shares[WARPS / 4] = {};
#pragma unroll 1
  for (int first = 0; first < blocks; first += WARPS) {
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      float& share = (&shares[i / 4].x)[i % 4];
      share += first + i < blocks ? __ldcg(squares + first + i) : 0.f;
    }
  }
  return norm_factor(shares, s.pass.mean, s.pass.eps);
}

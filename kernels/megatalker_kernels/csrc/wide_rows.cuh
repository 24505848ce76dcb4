// Rows of the residual stream on their way into products: as operand, and by what is known of their norm.
#pragma once
#include "number.cuh"
#include "wide_shared.cuh"

constexpr int SQUARES = (MAX_HIDDEN / KBLOCK + WARPS - 1) / WARPS * WARPS;  // of a row, whole chains

constexpr int MATRIX_WORDS = TILE * 4;  // of a fragment's four

// Address of the words of an operand's row that hold the pair of columns `column`, a multiple of four. A column block of eight rows
// has the layout of a fragment of weights: see packing.py.
__device__ inline u32* operand_words(void* operand, int row, int column) {
  const u64 fragment = u64(column / KBLOCK) * (wide_shared().pass.padded / TILE) + row / TILE;
  return static_cast<u32*>(operand) + (fragment * 4 + column % 8 / 4) * MATRIX_WORDS + row % TILE * 4 + column % KBLOCK / 8;
}

// Stores four neighbouring columns of a row of an operand.
__device__ inline void put_columns(void* operand, int row, int column, uint2 pairs) {
  u32* words = operand_words(operand, row, column);
  words[0] = pairs.x, words[2 * MATRIX_WORDS] = pairs.y;
}

// Sixteen, from a multiple of that on.
__device__ inline void put_sixteen(void* operand, int row, int column, const uint2 (&pairs)[4]) {
  u32* words = operand_words(operand, row, column);
#pragma unroll
  for (int odd = 0; odd < 2; ++odd, words += MATRIX_WORDS) {
    *reinterpret_cast<uint2*>(words) = {pairs[odd].x, pairs[odd + 2].x};
    *reinterpret_cast<uint2*>(words + 2 * MATRIX_WORDS) = {pairs[odd].y, pairs[odd + 2].y};
  }
}

// Four columns of a row, times the weights of the norm in front of the next product. Eight neighbouring lanes have a column block; if
// not `there`, it stays out.
__device__ inline void put_operand(bool there, int row, int column, float4 x, const float* norm) {
  const WideBuffers& wide = wide_shared().wide;
  x = without_tags(x);
  const float squares = sum_of_eight(sum_of_squares(x));
  if (!there) return;
  x = x * __ldg(reinterpret_cast<const float4*>(norm + column));
  if (column % KBLOCK == 0) wide.squares[row * SQUARES + column / KBLOCK] = squares;
  put_columns(wide.operand, row, column, {pack(x.x, x.y), pack(x.z, x.w)});
}

// 1 / rms of a row, added up as the megakernel's warps do.
__device__ inline float norm_factor(int row) {
  const WideShared& s = wide_shared();
  const float4* squares = reinterpret_cast<const float4*>(s.wide.squares + row * SQUARES);
  const int blocks = s.pass.sizes.hidden / KBLOCK;
  float4 shares[WARPS / 4] = {};
#pragma unroll 4
  for (int first = 0; first < blocks; first += WARPS) {
#pragma unroll
    for (int i = 0; i < WARPS / 4; ++i) {
      const float4 x = __ldcg(squares + first / 4 + i);
      const int left = blocks - first - 4 * i;  // what lies behind is of another pass
      shares[i] = shares[i] + float4{left > 0 ? x.x : 0, left > 1 ? x.y : 0, left > 2 ? x.z : 0, left > 3 ? x.w : 0};
    }
  }
  return norm_factor(shares, s.pass.mean, s.pass.eps);
}

// Activations on their way into shared memory, as operand A of mma.m16n8k16. Each warp brings the column blocks that it
// multiplies, warp, warp + WARPS, ..., so that no other warp has to wait for it.
#pragma once
#include "copy.cuh"
#include "publish.cuh"
#include "shared.cuh"

// Location of the activations of a product.
struct Origin {
  const Source* first;  // of each row, at the start of a stack; or null:
  const float* quads;   // what the last phase published, [rows][stride]
  int stride;
  const float* norm;    // weights of an RMSNorm in front of the product, or null
};

__device__ inline Quad read_source(const Source& source, int column) {
  const float4 x = source.values ? __ldcg(reinterpret_cast<const float4*>(source.values + column)) : widen_four(source.table + column);
  return {__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)};
}

// Columns [begin, begin + size) of the operand; eight lanes take a row of a column block. RMSNorm is value * weight here; the
// epilogue multiplies the row's factor in. The warp's share of each row's sum of squares goes to `squares`, one column block after
// the other however many rows there are; the first columns start it, later ones add to it.
__device__ inline void load_operand(const Origin& origin, int begin, int size, bool count_squares) {
  constexpr int AT_ONCE = 8;
  static_assert(AT_ONCE == 8);
  Shared& s = shared();
  const int thread = own_thread(), warp = thread >> 5, part = thread & 7, place = thread >> 3 & 3;
  const int shift = s.pass.shift, rows = s.pass.rows, last_row = (1 << shift) - 1;
  const int pairs = (size / KBLOCK - warp + WARPS - 1) / WARPS << shift;  // of column blocks and rows
  const float* norm = origin.norm;
  const bool counts = norm && count_squares;
  float squares = counts && begin > 0 && part <= last_row ? s.squares[part][warp] : 0.f;  // of row `part`
  const auto row = [&](int pair) { return pair & last_row; };
  const auto column = [&](int pair) { return ((pair >> shift) * WARPS + warp) * KBLOCK + part * 4; };
  const auto put = [&](int pair, const Quad& quad) {
    float4 x = quad.values();
    float own = 0;
    if (norm) {
      own = sum_of_squares(x);
      x = x * four(&s.norm[column(pair)]);
    }
    uint4* vector = &s.product.operand[((pair >> shift) * WARPS + warp << shift + 2) + row(pair) * 4 + part / 2];
    reinterpret_cast<uint2*>(vector)[part % 2] = uint2{pack(x.x, x.y), pack(x.z, x.w)};
    return own;
  };
  // Adds those of the pairs first, first + 4, ... of every lane. Eight lanes have a column block, whatever the number of rows.
  const auto count = [&](int first, const float (&own)[AT_ONCE]) {
    if (pairs <= 4) {
      const float sum = sum_of_eight(own[0]);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float its = __shfl_sync(0xffffffffu, sum, pair * 8);
        squares += pair < pairs && row(pair) == row(part) ? its : 0.f;
      }
      return;
    }
    const float sum = sums_of_eight(own);  // of pair first + 4 * part
    const int blocks = min(pairs - (first - place), 4 * AT_ONCE) >> shift;
#pragma unroll 4
    for (int block = 0; block < blocks; ++block) {
      const int pair = (block << shift) + (part & last_row);
      squares += __shfl_sync(0xffffffffu, sum, pair % 4 * 8 + pair / 4);
    }
  };
  if (norm) {  // on its way while the results are awaited
#pragma unroll 1
    for (int block = warp + place * WARPS; block * KBLOCK < size; block += 4 * WARPS) {
      copy_async_16(&s.norm[block * KBLOCK + part * 4], norm + begin + block * KBLOCK + part * 4);
    }
  }
  if (origin.first) {
    await_async_copies();
    __syncwarp();
#pragma unroll 1
    for (int first = place; first - place < pairs; first += 4 * AT_ONCE) {
      float own[AT_ONCE] = {};
#pragma unroll 1
      for (int k = 0; k < AT_ONCE; ++k) {
        const int pair = first + 4 * k;
        const float its = pair < pairs && row(pair) < rows ? put(pair, read_source(origin.first[row(pair)], begin + column(pair))) : 0.f;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) own[i] = i == k ? its : own[i];
      }
      if (counts) count(first, own);
    }
  } else {
    // Places of a lane's quads: of every second one, one row and one column block after the other.
    const int stride = origin.stride, next = shift == 3 ? 4 * stride : (WARPS * KBLOCK * 4) >> shift;
    const int after_next = shift == 3 ? WARPS * KBLOCK : 2 * next;
    const u32 tag = tag_of_phase(0), of_rows = (row(place) < rows ? 0x55u : 0) | (row(place + 4) < rows ? 0xaau : 0);
    const float* quads = origin.quads + begin + row(place) * stride + column(place);
#pragma unroll 1
    for (int first = place; first - place < pairs; first += 4 * AT_ONCE, quads += AT_ONCE / 2 * after_next) {
      const u32 wanted = of_rows & (1u << clamped((pairs - first + 3) / 4, 0, AT_ONCE)) - 1;
      u32 missing = wanted;
      Quad x[AT_ONCE];
      SpinGuard guard;
      do {
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
          load_if(missing >> k & 1, quads + k / 2 * after_next + k % 2 * next, x[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) missing &= ~(u32(x[k].has_tag(tag)) << k);
      } while (missing && spin_on(guard));
      await_async_copies();
      __syncwarp();
      float own[AT_ONCE] = {};
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        if (wanted >> k & 1) own[k] = put(first + 4 * k, x[k]);
      }
      if (counts) count(first, own);
    }
  }
  if (counts && place == 0 && part <= last_row) s.squares[part][warp] = squares;
  __syncwarp();
}

__device__ inline float norm_factor(int row) {
  const Shared& s = shared();
  return norm_factor(reinterpret_cast<const float4(&)[WARPS / 4]>(s.squares[row]), s.pass.mean, s.pass.eps);
}

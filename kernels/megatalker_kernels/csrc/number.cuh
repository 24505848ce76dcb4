// Number formats: bfloat16 pairs, and products of fragments.
#pragma once
#include "config.cuh"

#define LOWEST __uint_as_float(0xff800000u)  // minus infinity

__device__ inline float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Round to nearest even; `first` goes to the low half.
__device__ inline u32 pack(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

__device__ inline float4 widen_four(const u16* source) {
  const uint2 a = __ldg(reinterpret_cast<const uint2*>(source));
  return {low_half(a.x), high_half(a.x), low_half(a.y), high_half(a.y)};
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// c += a * b; lane 4 * n + q holds columns 2q, 2q + 1 and 2q + 8, 2q + 9 of a's rows n (a0, a2) and n + 8 (a1, a3) and of
// b's row n (b0, b1), and columns 2q, 2q + 1 of c's rows n (c0, c1) and n + 8 (c2, c3).
__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

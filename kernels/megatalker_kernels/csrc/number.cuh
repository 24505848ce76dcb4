// Bfloat16 pairs, and sums over a warp.
#pragma once
#include "primitive.cuh"

#define LOWEST __uint_as_float(0xff800000u)  // minus infinity

__device__ inline float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline float4 widen_four(const Weight* source) {
  const uint2 a = __ldg(reinterpret_cast<const uint2*>(source));
  return {low_half(a.x), high_half(a.x), low_half(a.y), high_half(a.y)};
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Bfloat16 pairs, fours of numbers, and arithmetic that both kernels share bit for bit: where a compiler could fuse a product and
// a sum in two ways, it is told which.
#pragma once
#include "config.cuh"

#define LOWEST __uint_as_float(0xff800000u)  // minus infinity

__device__ inline float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline float4 widen_four(const Weight* source) {
  const uint2 a = __ldg(reinterpret_cast<const uint2*>(source));
  return {low_half(a.x), high_half(a.x), low_half(a.y), high_half(a.y)};
}

__device__ inline float4& four(float* place) { return *reinterpret_cast<float4*>(place); }
__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
__device__ inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }

// Published numbers lose their lowest byte; so do other inputs of a product: a row gives the same bits wherever it lies.
__device__ inline float without_tag(u32 word) { return __uint_as_float(word & 0xffffff00u); }
__device__ inline float4 without_tags(float4 x) {
  return {without_tag(__float_as_uint(x.x)), without_tag(__float_as_uint(x.y)), without_tag(__float_as_uint(x.z)),
          without_tag(__float_as_uint(x.w))};
}

__device__ inline float sum_of_squares(const float4& x) { return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))); }

// Over eight neighbouring lanes, each of which has four columns: a column block.
__device__ inline float sum_of_eight(float value) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Sums eight values over the lanes at once: this lane gets the sum of the value with its number among the eight.
__device__ inline float sums_of_eight(const float (&values)[8]) {
  float sums[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = values[i];
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    const bool odd = own_thread() & step;
#pragma unroll
    for (int i = 0; i < 8 / (2 * step); ++i) {
      const float mine = odd ? sums[2 * i + 1] : sums[2 * i], theirs = odd ? sums[2 * i] : sums[2 * i + 1];
      sums[i] = mine + __shfl_xor_sync(0xffffffffu, theirs, step);
    }
  }
  return sums[0];
}

// 1 / rms of a row from the squares that fall to each warp: the column blocks warp, warp + WARPS, ..., added up in this order.
__device__ inline float norm_factor(const float4 (&shares)[WARPS / 4], float mean, float eps) {
  float sum = 0;
#pragma unroll
  for (const float4& each : shares) sum += (each.x + each.y) + (each.z + each.w);
  return rsqrtf(fmaf(sum, mean, eps));
}

// Four columns of silu(gate) * up.
__device__ inline uint2 gated(const float4& gate, const float4& up) {
  const auto one = [](float gate, float other) { return __fdividef(gate, 1.f + __expf(-gate)) * other; };
  return {pack(one(gate.x, up.x), one(gate.y, up.y)), pack(one(gate.z, up.z), one(gate.w, up.w))};
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Number formats: bfloat16 pairs and loads that see other blocks' writes.
#pragma once
#include "config.cuh"

#define LOWEST __uint_as_float(0xff800000u)  // minus infinity

__device__ inline float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline float widen(u16 value) { return __uint_as_float(u32(value) << 16); }

// Round to nearest even; `first` goes to the low half.
__device__ inline u32 pack(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

__device__ inline u16 narrow(float value) { return u16(pack(value, 0.f)); }

struct Eight {
  float v[8];
};

__device__ inline Eight load_eight(const float* source) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(source));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(source) + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

__device__ inline Eight load_eight(const u16* source) {
  const uint4 a = __ldcg(reinterpret_cast<const uint4*>(source));
  return {low_half(a.x), high_half(a.x), low_half(a.y), high_half(a.y),
          low_half(a.z), high_half(a.z), low_half(a.w), high_half(a.w)};
}

__device__ inline float warp_sum(float value, int width = 32) {
  for (int step = width / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

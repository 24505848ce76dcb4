// Enough of CUDA to run the kernels on a CPU, exactly but slowly. What they say about memory order is not put to the test.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "fibers.h"

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // for kernels that run one block at a time
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline

using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_rn(double value) { return float(value); }
inline float __ll2float_rn(long long value) { return float(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float value) { return std::exp(value); }
inline float rsqrtf(float value) { return 1 / std::sqrt(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select) {
  const unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= unsigned(bytes >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return chosen;
}

template <class Value>
inline Value __ldg(const Value* pointer) {
  return *pointer;
}
template <class Value>
inline Value __ldcg(const Value* pointer) {
  return *pointer;
}
template <class Value>
inline Value atomicAdd(Value* pointer, Value value) {
  const Value before = *pointer;
  *pointer += value;
  return before;
}
inline unsigned atomicExch(unsigned* pointer, unsigned value) { return std::exchange(*pointer, value); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline long long clock64() { return emulation::ticks; }
inline void __nanosleep(unsigned) { emulation::rest(); }

inline void __syncthreads() { emulation::wait_for_block(0, blockDim.x); }
inline void __syncwarp() { emulation::wait_for_warp(); }

template <class Value>
inline Value __shfl_sync(unsigned, Value value, int lane) {
  return emulation::show(value)[lane];
}
template <class Value>
inline Value __shfl_xor_sync(unsigned, Value value, int mask) {
  return emulation::show(value)[threadIdx.x % 32 ^ mask];
}
template <class Value>
inline Value __shfl_up_sync(unsigned, Value value, unsigned step) {
  const unsigned lane = threadIdx.x % 32;
  return emulation::show(value)[lane < step ? lane : lane - step];
}
inline bool __all_sync(unsigned, bool value) {
  const bool* const lanes = emulation::show(value);
  return std::all_of(lanes, lanes + 32, [](bool each) { return each; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const unsigned* const lanes = emulation::show(value);
  return *std::max_element(lanes, lanes + 32);
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  const unsigned* const lanes = emulation::show(value);
  return std::accumulate(lanes, lanes + 32, 0u);
}

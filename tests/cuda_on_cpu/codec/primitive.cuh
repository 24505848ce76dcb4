// Stands in for the file of the same name in csrc/codec.
#pragma once
#include "cuda_on_cpu.h"

using u32 = unsigned int;
using i64 = long long;

inline void admit_successor() {}
inline void await_predecessor() {}

inline void copy_piece(void* target, const void* source, bool wanted) {
  wanted ? std::memcpy(target, source, 16) : std::memset(target, 0, 16);
}

inline void end_group() {}

template <int LATEST>
inline void await_groups() {}

inline float in_tf32(u32 bits) { return __uint_as_float(bits & 0xffffe000u); }

// Tensor cores do not round their sums, they cut them off.
inline float cut_off(double sum) {
  const float rounded = float(sum);
  return std::abs(double(rounded)) > std::abs(sum) ? std::nextafter(rounded, 0.f) : rounded;
}

inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  struct Fragments {
    u32 a[4], b[2];
  };
  const Fragments* const lanes = emulation::show(Fragments{{a0, a1, a2, a3}, {b0, b1}});
  for (int i = 0; i < 4; ++i) {
    const int lane = threadIdx.x % 32, row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; ++k)
      sum += double(in_tf32(lanes[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2])) *
             in_tf32(lanes[column * 4 + k % 4].b[k / 4]);
    c[i] = cut_off(sum);
  }
}

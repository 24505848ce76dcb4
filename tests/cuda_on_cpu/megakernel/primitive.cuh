// Stands in for the file of the same name in csrc.
#pragma once
#include "cuda_on_cpu.h"

#include "config.cuh"

inline void* block_memory() { return emulation::block_memory(); }

inline int own_thread() { return threadIdx.x; }

inline bool now_and_then(u32& polls) {
  emulation::rest();
  return (++polls & 15u) == 0;
}

inline void consumer_sync() { emulation::wait_for_block(1, CONSUMERS); }

inline u32 in_bfloat16(float value) {
  const u32 bits = __float_as_uint(value);
  return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

inline u32 pack(float first, float second) { return in_bfloat16(second) << 16 | in_bfloat16(first); }

inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  struct Fragments {
    u32 a[4], b[2];
  };
  const Fragments* const lanes = emulation::show(Fragments{{a0, a1, a2, a3}, {b0, b1}});
  for (int i = 0; i < 4; ++i) {
    const int lane = threadIdx.x % 32, row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; ++k) {  // pairs
      const u32 a = lanes[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2], b = lanes[column * 4 + k % 4].b[k / 4];
      sum += double(__uint_as_float(a << 16)) * __uint_as_float(b << 16);
      sum += double(__uint_as_float(a & 0xffff0000u)) * __uint_as_float(b & 0xffff0000u);
    }
    c[i] = float(sum);
  }
}

inline void store_quad(float* place, u32 a, u32 b, u32 c, u32 d) {
  const u32 words[] = {a, b, c, d};
  std::memcpy(place, words, sizeof words);
}

inline void load_quad(bool wanted, const float* place, u32 (&word)[4]) {
  if (wanted) std::memcpy(word, place, sizeof word);
}

inline void add_release(u32* word, u32 value) { *word += value; }
inline u32 load_acquire(const u32* word) { return *word; }
inline u32 add_acquire_release(u32* word, u32 value) { return atomicAdd(word, value); }

// Stands in for the file of the same name in csrc.
#pragma once
#include "tensor_core.h"

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
  const auto low = [](u32 pair) { return double(__uint_as_float(pair << 16)); };
  const auto high = [](u32 pair) { return double(__uint_as_float(pair & 0xffff0000u)); };
  emulation::multiply(c, {{a0, a1, a2, a3}, {b0, b1}}, [&](u32 a, u32 b) { return low(a) * low(b) + high(a) * high(b); });
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

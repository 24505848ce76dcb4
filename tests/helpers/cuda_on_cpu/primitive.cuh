// Stands in for the file of the same name in csrc.
#pragma once
#include <functional>
#include <vector>

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

inline uint4 load_matrices(const uint4* row) {
  const uint4* const* rows = emulation::show(row);
  const int lane = threadIdx.x % 32;
  const auto word = [&](int matrix) { return reinterpret_cast<const u32*>(rows[matrix * 8 + lane / 4])[lane % 4]; };
  return {word(0), word(1), word(2), word(3)};
}

inline double low(u32 pair) { return __uint_as_float(pair << 16); }
inline double high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline double product(u32 a, u32 b) { return low(a) * low(b) + high(a) * high(b); }

inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulation::multiply(c, {{a0, a1, a2, a3}, {b0, b1}}, product);
}

// Products of a warpgroup read and add as late as their waits allow. Lanes come to each of these together.
inline std::vector<std::vector<std::function<void()>>> products;  // of each thread

inline auto& own_products() {
  products.resize(emulation::fibers.size());
  return products[emulation::current];
}

inline void begin_warpgroup_products() { emulation::wait_for_warp(); }
inline void end_warpgroup_products() { emulation::wait_for_warp(); }
inline void await_warpgroup_products() {
  emulation::wait_for_warp();
  for (const auto& each : std::exchange(own_products(), {})) each();
}
inline void has_changed(float&) {}

// Two matrices of eight rows of each fragment of an operand.
struct Fragments {
  const uint4* first;
  int apart;

  const u32* row(int number, int matrix) const { return &first[number / 8 * apart + matrix * 8 + number % 8].x; }
  Fragments operator+(int vectors) const { return {first + vectors, apart}; }
};

template <int TILES>
inline void multiply_warpgroup(float (&c)[TILES][4], Fragments a, Fragments b, bool add) {
  const int first = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, second = threadIdx.x % 4 * 2;
  own_products().push_back([=, &c] {
    for (int i = 0; i < TILES * 4; ++i) {
      const int row = first + i % 4 / 2 * 8, column = i / 4 * 8 + second + i % 2;
      double sum = add ? c[i / 4][i % 4] : 0;
      for (int k = 0; k < 8; ++k) sum += product(a.row(row, k / 4)[k % 4], b.row(column, k / 4)[k % 4]);
      c[i / 4][i % 4] = emulation::cut_off(sum);
    }
  });
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

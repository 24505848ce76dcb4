// Stands in for the file of the same name in csrc.
#pragma once
#include <functional>
#include <vector>

#include "tensor_core.h"

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

inline void* block_memory() { return emulation::block_memory(); }

inline int own_thread() { return threadIdx.x; }

inline bool now_and_then(u32& polls) {
  emulation::rest();
  return (++polls & 15u) == 0;
}

template <int COUNT>
inline void sync_threads() {
  emulation::wait_for_block(1, COUNT);
}

inline void admit_successor() {}
inline void await_predecessor() {}

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

inline float in_tf32(u32 bits) { return __uint_as_float(bits & 0xffffe000u); }

inline void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulation::multiply(c, {{a0, a1, a2, a3}, {b0, b1}}, [](u32 a, u32 b) { return double(in_tf32(a)) * in_tf32(b); });
}

// Every float16 by its bits: a processor without an instruction for the conversion takes long for each.
inline const std::vector<float> halves = [] {
  std::vector<float> numbers(1 << 16);
  for (u32 bits = 0; bits < numbers.size(); ++bits) numbers[bits] = float(std::bit_cast<_Float16>(u16(bits)));
  return numbers;
}();

inline float half_at(u32 word, int place) { return halves[word >> 16 * place & 0xffffu]; }

inline u32 to_f16(float first, float second) {
  const _Float16 numbers[2] = {_Float16(first), _Float16(second)};
  u32 word;
  std::memcpy(&word, numbers, 4);
  return word;
}

inline float2 from_f16(u32 word) { return {half_at(word, 0), half_at(word, 1)}; }

inline void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulation::multiply(c, {{a0, a1, a2, a3}, {b0, b1}}, [](u32 a, u32 b) {
    return double(half_at(a, 0)) * half_at(b, 0) + double(half_at(a, 1)) * half_at(b, 1);
  });
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

inline void fence_async_shared() {}

// Matrices of eight rows of 16 bytes.
struct MatrixDescriptor {
  const uint4* first;
  int across, down;

  MatrixDescriptor(const void* first, int across, int down)
      : first(static_cast<const uint4*>(first)), across(across), down(down) {}

  const u32* row(int number, int matrix) const { return &first[number / 8 * down + matrix * across + number % 8].x; }
  MatrixDescriptor operator+(int vectors) const { return {first + vectors, across, down}; }
};

// Sixteen columns of a row; `read` takes the two numbers of a word.
struct Columns {
  double number[16];

  template <class Read>
  Columns(const MatrixDescriptor& matrices, int row, Read read) {
    for (int k = 0; k < 8; ++k) read(matrices.row(row, k / 4)[k % 4], number[2 * k], number[2 * k + 1]);
  }

  double add_product(double sum, const Columns& other) const {
    for (int k = 0; k < 16; k += 2) sum += number[k] * other.number[k] + number[k + 1] * other.number[k + 1];
    return sum;
  }
};

template <int TILES, class Read>
inline void multiply_rows(float (&c)[TILES][4], MatrixDescriptor a, MatrixDescriptor b, bool add, Read read) {
  const int first = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, second = threadIdx.x % 4 * 2;
  own_products().push_back([=, &c] {
    const Columns rows[2] = {{a, first, read}, {a, first + 8, read}};
    for (int i = 0; i < TILES * 2; ++i) {
      const Columns column(b, i / 2 * 8 + second + i % 2, read);
      for (int j = 0; j < 2; ++j) {
        float& value = c[i / 2][j * 2 + i % 2];
        value = emulation::cut_off(rows[j].add_product(add ? value : 0, column));
      }
    }
  });
}

template <int TILES>
inline void multiply_warpgroup(float (&c)[TILES][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_rows(c, a, b, add, [](u32 pair, double& first, double& second) { first = low(pair), second = high(pair); });
}

inline void multiply_warpgroup_f16(float (&c)[12][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_rows(c, a, b, add, [](u32 pair, double& first, double& second) {
    first = half_at(pair, 0), second = half_at(pair, 1);
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

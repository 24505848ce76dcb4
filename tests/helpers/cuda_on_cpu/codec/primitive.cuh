// Stands in for the file of the same name in csrc/codec.
#pragma once
#include "tensor_core.h"

using u32 = unsigned int;
using i64 = long long;

inline void admit_successor() {}
inline void await_predecessor() {}

inline void copy_async_16(void* target, const void* source, bool wanted) {
  wanted ? std::memcpy(target, source, 16) : std::memset(target, 0, 16);
}

inline void copy_async_shared_16(void* target, const void* source, bool wanted) { copy_async_16(target, source, wanted); }

inline void prefetch(const void*, u32) {}

inline void end_group() {}

template <int LATEST>
inline void await_groups() {}

inline float in_tf32(u32 bits) { return __uint_as_float(bits & 0xffffe000u); }

inline void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emulation::multiply(c, {{a0, a1, a2, a3}, {b0, b1}}, [](u32 a, u32 b) { return double(in_tf32(a)) * in_tf32(b); });
}

inline float half_at(u32 word, int place) {
  const unsigned short bits = word >> 16 * place;
  _Float16 number;
  std::memcpy(&number, &bits, 2);
  return float(number);
}

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

struct Arrival {
  bool parity;  // of the copy that comes next

  void begin() { parity = 0; }
  void copy(void* target, const void* source, u32 bytes) {
    std::memcpy(target, source, bytes);
    parity = !parity;
  }
  void await(int awaited) {
    while (parity == awaited) emulation::rest();
  }
};

struct Operand {
  const float4* first;
  int panel;

  Operand(const float4* first, int panel) : first(first), panel(panel) {}

  // Sixteen columns of a row.
  void read(int row, float (&columns)[16]) const {
    for (int i = 0; i < 16; ++i) {
      _Float16 number;
      std::memcpy(&number, reinterpret_cast<const char*>(first + i / 8 * panel + row) + i % 8 * 2, 2);
      columns[i] = number;
    }
  }
};

inline void admit_to_tensor_cores() {}
inline void begin_warpgroup_products() {}
inline void end_warpgroup_products() {}
inline void await_warpgroup_products() {}
inline void has_changed(float&) {}

inline void multiply_warpgroup(float (&c)[48], Operand x, Operand w, bool add) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float rows[2][16], column[16];
  for (int i = 0; i < 2; ++i) x.read(row + 8 * i, rows[i]);
  for (int i = 0; i < 24; ++i) {
    w.read(i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, column);
    for (int j = 0; j < 2; ++j) {
      float& value = c[i / 2 * 4 + j * 2 + i % 2];
      double sum = add ? value : 0;
      for (int k = 0; k < 16; ++k) sum += double(rows[j][k]) * column[k];
      value = emulation::cut_off(sum);
    }
  }
}

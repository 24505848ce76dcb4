// Products of fragments with sixteen rows, eight columns and eight words in a row, whatever numbers a word holds.
#pragma once
#include "cuda_on_cpu.h"

namespace emulation {

struct Fragments {
  unsigned a[4], b[2];
};

// Tensor cores do not round their sums, they cut them off.
inline float cut_off(double sum) {
  const float rounded = float(sum);
  return std::abs(double(rounded)) > std::abs(sum) ? std::nextafter(rounded, 0.f) : rounded;
}

// Adds what `product` makes of two words to `c`, whose places in a warp's lanes are those of mma.m16n8.
template <class Product>
inline void multiply(float (&c)[4], const Fragments& own, Product product) {
  const Fragments* const lanes = show(own);
  for (int i = 0; i < 4; ++i) {
    const int lane = threadIdx.x % 32, row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; ++k) {
      sum += product(lanes[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2], lanes[column * 4 + k % 4].b[k / 4]);
    }
    c[i] = cut_off(sum);
  }
}

}  // namespace emulation

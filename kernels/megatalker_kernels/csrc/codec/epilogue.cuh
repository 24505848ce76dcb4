// The operations on the sums of a product.
#pragma once
#include "numbers.cuh"

using Numbers = NUMBERS;

enum Activation : int { ACTIVATIONS };

struct Epilogue {
  const float* bias;       // [columns], or null
  const float* residual;   // [rows, columns] added to the sums, or null
  const float* frequency;  // [channels] of the snake; null without one
  const float* height;
  float* raw;     // [rows, columns] before the snake, or null
  float* packed;  // [rows, columns] after it, for other products, or null
  int channels;  // the snake's; columns repeat it
  int columns;
  int activation;
};

constexpr float FAR = 3e4f;  // beyond it, multiples of pi are taken off in double precision

// The sine of x, or its negative: callers square it.
__device__ inline float sine_or_its_negative(float x) {
  float rest;
  if (fabsf(x) > FAR) {
    const double turns = rint(double(x) * 0.31830988618379067);
    rest = float(fma(turns, -3.141592653589793, double(x)));
  } else {
    const float turns = rintf(x * 0.31830987f);
    rest = fmaf(turns, 8.742278e-8f, fmaf(turns, -3.1415927f, x));
  }
  // The polynomial's error is below 4e-9.
  const float square = rest * rest;
  float sum = fmaf(square, 2.6000544e-6f, -1.9806615e-4f);
  sum = fmaf(square, sum, 8.333017e-3f);
  sum = fmaf(square, sum, -0.16666657f);
  return fmaf(rest, square * sum, rest);
}

__device__ inline float snake(float x, float frequency, float height) {
  const float wave = sine_or_its_negative(x * frequency);
  return fmaf(wave * height, wave, x);
}

__device__ inline float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }

__device__ inline float gated(float gate, float up) { return gate / (1.f + expf(-gate)) * up; }

__device__ inline float4 snake(float4 v, float4 frequency, float4 height) {
  return {snake(v.x, frequency.x, height.x), snake(v.y, frequency.y, height.y), snake(v.z, frequency.z, height.z),
          snake(v.w, frequency.w, height.w)};
}

__device__ inline float4 gelu(float4 v) { return {gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)}; }

// Eight columns from `column` on, of any row.
struct Finisher {
  const Epilogue& e;
  const int column;
  Eight bias = {}, frequency = {}, height = {};

  __device__ Finisher(const Epilogue& e, int column) : e(e), column(column) {
    if (e.bias) bias = eight_at(e.bias, column);
    if (!e.frequency) return;
    frequency = eight_at(e.frequency, column % e.channels), height = eight_at(e.height, column % e.channels);
  }

  // The numbers that are added to the row's sums.
  __device__ Eight addend(int row) const {
    return e.residual ? bias + eight_at(e.residual, i64(row) * e.columns + column) : bias;
  }

  __device__ void operator()(int row, Eight v) const {
    const i64 start = i64(row) * e.columns;
    if (e.activation == GELU) v = {gelu(v.front), gelu(v.back)};
    if (e.activation == GATED) {
      const float4 &f = v.front, &b = v.back;
      return Numbers::pack(e.packed, (start + column) / 2, float4{gated(f.x, f.y), gated(f.z, f.w), gated(b.x, b.y), gated(b.z, b.w)});
    }
    if (e.activation == SAMPLE) {
      if (column == 0) e.raw[row] = fminf(fmaxf(v.front.x, -1.f), 1.f);
      return;
    }
    if (e.raw) put_eight(e.raw + start + column, v);
    if (e.frequency) v = {snake(v.front, frequency.front, height.front), snake(v.back, frequency.back, height.back)};
    if (e.packed) Numbers::pack(e.packed, start + column, v);
  }
};

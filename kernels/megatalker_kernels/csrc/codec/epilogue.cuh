// What becomes of the sums of a product.
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

  __device__ void operator()(int row, int column, float4 v) const;
};

__device__ inline float snake(float x, float frequency, float height) {
  const float wave = sinf(x * frequency);
  return fmaf(wave * height, wave, x);
}

__device__ inline float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }

__device__ inline float gated(float gate, float up) { return gate / (1.f + expf(-gate)) * up; }

__device__ inline void Epilogue::operator()(int row, int column, float4 v) const {
  const i64 at = i64(row) * columns + column;
  if (bias) v = v + float4_at(bias, column);
  if (residual) v = v + float4_at(residual, at);
  if (activation == GELU) v = {gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)};
  if (activation == GATED) {
    const float2 pair = {gated(v.x, v.y), gated(v.z, v.w)};
    return Numbers::pack_pair(packed + i64(row) * columns / 2, column / 2, pair);
  }
  if (activation == SAMPLE) {
    if (column == 0) raw[row] = fminf(fmaxf(v.x, -1.f), 1.f);
    return;
  }
  if (raw) *reinterpret_cast<float4*>(raw + at) = v;
  if (frequency) {
    const float4 f = float4_at(frequency, column % channels), h = float4_at(height, column % channels);
    v = {snake(v.x, f.x, h.x), snake(v.y, f.y, h.y), snake(v.z, f.z, h.z), snake(v.w, f.w, h.w)};
  }
  if (packed) *reinterpret_cast<float4*>(packed + at) = Numbers::pack(v);
}

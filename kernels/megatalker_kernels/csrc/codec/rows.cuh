// Work of one block on one row: the first stage, and the part of a ConvNeXt block before its products.
#pragma once
#include "attention.cuh"

// Sums the entries that a frame's codes name.
struct Lookup {
  const float* table;  // [groups, codebook, width]
  float* out;          // [streams, time, width], packed
  Tickets tickets;
  int time, groups, codebook, width;
};

// Blocks: frames, within streams.
__device__ inline void look_up(const Lookup& p) {
  admit_successor();
  await_predecessor();
  const int stream = blockIdx.x / p.time, frame = blockIdx.x % p.time;
  const i64* const codes = p.tickets.codes(stream) + frame * p.groups;
  for (int d = threadIdx.x * 4; d < p.width; d += blockDim.x * 4) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int group = 0; group < p.groups; ++group)
      sum = sum + float4_at(p.table, (i64(group) * p.codebook + codes[group]) * p.width + d);
    Numbers::pack(p.out, i64(blockIdx.x) * p.width + d, sum);
  }
}

// A causal convolution of each channel by itself, then layer normalisation without weights.
struct Mixing {
  Input in;
  Tickets tickets;
  const float* taps;  // [taps, channels]
  const float* bias;
  float* out;  // packed
  float eps;
};

__device__ inline float block_sum(float value) {
  __shared__ float parts[MIXING_THREADS / 32];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < MIXING_THREADS / 32; ++i) sum += parts[i];
  return sum;
}

// Blocks: rows.
__device__ inline void mix(const Mixing& p) {
  extern __shared__ float4 memory[];
  admit_successor();
  await_predecessor();
  float* const row = reinterpret_cast<float*>(memory);
  const Input& in = p.in;
  const int time = blockIdx.x % in.time;
  const float* const now = p.tickets[blockIdx.x / in.time].now + in.slot;
  const float* const here = in.data + i64(blockIdx.x) * in.words;
  float sum = 0;
  for (int d = threadIdx.x * 4; d < in.words; d += MIXING_THREADS * 4) {
    float4 value = float4_at(p.bias, d);
#pragma unroll 8
    for (int tap = 0; tap <= in.context; ++tap) {
      const int ago = in.context - tap;
      const float* const past = time >= ago ? here - ago * in.words : now + (time + tap) * in.words;
      value = value + float4_at(past, d) * float4_at(p.taps, tap * in.words + d);
    }
    *reinterpret_cast<float4*>(row + d) = value;
    sum += value.x + value.y + value.z + value.w;
  }
  in.remember(p.tickets);
  const float mean = block_sum(sum) / in.words;
  float square = 0;
  for (int d = threadIdx.x; d < in.words; d += MIXING_THREADS) square += (row[d] - mean) * (row[d] - mean);
  const float factor = 1.f / sqrtf(block_sum(square) / in.words + p.eps);
  for (int d = threadIdx.x * 4; d < in.words; d += MIXING_THREADS * 4) {
    const float4 v = float4_at(row, d);
    const float4 normal = {(v.x - mean) * factor, (v.y - mean) * factor, (v.z - mean) * factor, (v.w - mean) * factor};
    Numbers::pack(p.out, i64(blockIdx.x) * in.words + d, normal);
  }
}

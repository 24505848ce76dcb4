// Attention of one head over the last frames, whose keys and values lie in a ring in the stream's cache.
#pragma once
#include "copy.cuh"
#include "epilogue.cuh"
#include "ticket.cuh"


constexpr float UNSEEN = -3.4e38f;  // a score that leaves nothing
constexpr int LINE = 32;            // floats of a line of the caches

struct Attention {
  const float* qkv;          // [streams, time, heads + 2 * kv_heads, width]
  const float* frequencies;  // [width / 2], radians a frame
  float* out;                // [streams, time, heads, width], packed
  Tickets tickets;
  i64 slot;  // where the layer's ring begins: [window - 1 + FRAMES, 2 * kv_heads, width], keys before values
  int time, heads, kv_heads, width, window;
};

// The ring as one head sees it, with this step's keys and values, which other blocks may not have written yet.
struct Past {
  const float* ring;
  const float* fresh;
  int first;  // place of entry 0 in the ring
  int old, length, pitch, width;

  __device__ const float* operator[](int entry) const {
    const int place = first + entry;
    return entry < old ? ring + (place < length ? place : place - length) * pitch : fresh + (entry - old) * width;
  }

  // Begins to bring the old entries into the L2 cache, from all threads together.
  __device__ void prefetch() const {
    const int lines = (width + LINE - 1) / LINE;
    for (int i = threadIdx.x; i < old * lines; i += ATTENTION_THREADS) prefetch_line((*this)[i / lines] + i % lines * LINE);
  }
};

__device__ inline float warp_most(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Blocks: heads, within streams.
__device__ inline void attend(const Attention& p) {
  extern __shared__ float4 memory[];
  const int head = blockIdx.x % p.heads, stream = blockIdx.x / p.heads, share = p.heads / p.kv_heads;
  const int width = p.width, half = width / 2, length = p.window - 1 + FRAMES, pitch = 2 * p.kv_heads * width;
  const Ticket ticket = p.tickets[stream];
  float* const ring = ticket.cache + p.slot + head / share * width;
  float *const queries = reinterpret_cast<float*>(memory), *const keys = queries + FRAMES * width;
  float *const values = keys + FRAMES * width, *const scores = values + FRAMES * width;
  float* const mixed = scores + FRAMES * length;
  const int old = int(min(ticket.position, i64(p.window - 1))), entries = old + p.time;
  const int first = int((ticket.position - old) % length);
  const Past past_keys{ring, keys, first, old, length, pitch, width};
  const Past past_values{ring + p.kv_heads * width, values, first, old, length, pitch, width};

  admit_successor();
  past_keys.prefetch(), past_values.prefetch();
  await_predecessor();
  // Rotate this step's queries and keys; one block of those that share a key head writes it into the ring.
  for (int i = threadIdx.x; i < p.time * half; i += ATTENTION_THREADS) {
    const int frame = i / half, d = i % half, at = frame * width + d;
    const float* const row = p.qkv + (i64(stream) * p.time + frame) * (p.heads + 2 * p.kv_heads) * width;
    const float *const q = row + head * width, *const k = row + (p.heads + head / share) * width;
    const float *const v = k + p.kv_heads * width;
    // float32 products, as the official decoder's, also thousands of frames into a stream
    const float angle = __fmul_rn(float(ticket.position + frame), p.frequencies[d]), c = cosf(angle), s = sinf(angle);
    queries[at] = q[d] * c - q[d + half] * s, queries[at + half] = q[d + half] * c + q[d] * s;
    keys[at] = k[d] * c - k[d + half] * s, keys[at + half] = k[d + half] * c + k[d] * s;
    values[at] = v[d], values[at + half] = v[d + half];
    if (head % share == 0) {
      float *const to = ring + (ticket.position + frame) % length * pitch, *const with = to + p.kv_heads * width;
      to[d] = keys[at], to[d + half] = keys[at + half], with[d] = values[at], with[d + half] = values[at + half];
    }
  }
  __syncthreads();

  // Scores: four lanes share a key.
  const float scale = 1.f / sqrtf(float(width));
  for (int base = 0; base < entries; base += ATTENTION_THREADS / 4) {
    const int entry = base + threadIdx.x / 4;
    float sum[FRAMES] = {};
    if (entry < entries) {
      const float* const key = past_keys[entry];
      for (int d = threadIdx.x % 4 * 4; d < width; d += 16) {
        const float4 k = float4_at(key, d);
#pragma unroll
        for (int frame = 0; frame < FRAMES; ++frame)
          if (frame < p.time) sum[frame] += dot(k, float4_at(queries, frame * width + d));
      }
    }
#pragma unroll
    for (int frame = 0; frame < FRAMES; ++frame) {
      if (frame >= p.time) break;
      sum[frame] += __shfl_xor_sync(0xffffffffu, sum[frame], 1);
      sum[frame] += __shfl_xor_sync(0xffffffffu, sum[frame], 2);
      // An entry is `old + frame - entry` frames older than the query.
      const bool seen = entry <= old + frame && old + frame - entry < p.window;
      if (entry < entries && threadIdx.x % 4 == 0) scores[frame * length + entry] = seen ? sum[frame] * scale : UNSEEN;
    }
  }
  __syncthreads();

  for (int frame = threadIdx.x / 32; frame < p.time; frame += ATTENTION_THREADS / 32) {
    float* const row = scores + frame * length;
    float most = UNSEEN, sum = 0;
    for (int i = threadIdx.x % 32; i < entries; i += 32) most = fmaxf(most, row[i]);
    most = warp_most(most);
    for (int i = threadIdx.x % 32; i < entries; i += 32) sum += row[i] = expf(row[i] - most);
    sum = warp_sum(sum);
    for (int i = threadIdx.x % 32; i < entries; i += 32) row[i] /= sum;
  }
  __syncthreads();

  // Groups of `width` threads each mix a part of the values.
  const int groups = ATTENTION_THREADS / width, group = threadIdx.x / width, d = threadIdx.x % width;
  if (group < groups) {
    float sum[FRAMES] = {};
#pragma unroll 8
    for (int entry = group; entry < entries; entry += groups) {
      const float value = past_values[entry][d];
#pragma unroll
      for (int frame = 0; frame < FRAMES; ++frame)
        if (frame < p.time) sum[frame] += scores[frame * length + entry] * value;
    }
#pragma unroll
    for (int frame = 0; frame < FRAMES; ++frame)
      if (frame < p.time) mixed[(group * FRAMES + frame) * width + d] = sum[frame];
  }
  __syncthreads();
  for (int i = threadIdx.x * 4; i < p.time * width; i += ATTENTION_THREADS * 4) {
    float4 sum = {0, 0, 0, 0};
    for (int other = 0; other < groups; ++other) sum = sum + float4_at(mixed, other * FRAMES * width + i);
    Numbers::pack(p.out, ((i64(stream) * p.time + i / width) * p.heads + head) * width + i % width, sum);
  }
}

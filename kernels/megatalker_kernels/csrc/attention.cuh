// Attention of single positions over paged keys and values. A unit is (row, key/value head, chunk of CHUNK positions);
// units are spread over the blocks, and the last unit of a (row, head) to finish combines the chunks in a fixed order.
#pragma once
#include "handover.cuh"
#include "number.cuh"

struct AttentionSpace {
  float query[MAX_QUERIES][MAX_HEAD_DIM];
  float key[ROWS][MAX_HEAD_DIM];        // keys of this pass, rounded as stored
  float score[MAX_QUERIES][CHUNK];
  int last;
};

// RMSNorm over the head, then rotary embedding; one warp, any lane count per pair.
template <int D>
__device__ __noinline__ void norm_and_rotate(const float* head, const float* weight, const float* rope, int position, float eps,
                                float scale, bool rounded, float* out) {
  constexpr int HALF = D / 2, EACH = (HALF + 31) / 32;
  const int lane = threadIdx.x & 31;
  float a[EACH], b[EACH], squares = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int d = lane + 32 * i;
    a[i] = d < HALF ? __ldcg(head + d) : 0.f;
    b[i] = d < HALF ? __ldcg(head + d + HALF) : 0.f;
    squares += a[i] * a[i] + b[i] * b[i];
  }
  const float factor = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int d = lane + 32 * i;
    if (d < HALF) {
      const float c = rope[position * D + d], s = rope[position * D + HALF + d];
      const float x = a[i] * factor * weight[d], y = b[i] * factor * weight[d + HALF];
      const float first = (x * c - y * s) * scale, second = (y * c + x * s) * scale;
      out[d] = rounded ? widen(narrow(first)) : first;
      out[d + HALF] = rounded ? widen(narrow(second)) : second;
    }
  }
}

// Where one layer's pages lie, and the positions of the rows.
struct Cache {
  u16* pages;                // of this layer: [pages][2][kv heads][PAGE][head_dim]
  const int* page_table;     // [slots][MAX_PAGES], or null: the row's slot is its page
  const int* slot;           // [rows]
  const int* position;       // [rows]

  __device__ int page(int row, int index) const {
    return page_table ? page_table[slot[row] * MAX_PAGES + index] : slot[row];
  }
};

template <class S>
__device__ void combine(const Buffers& to, int row, int head, int chunks, AttentionSpace& space) {
  constexpr int D = S::HEAD_DIM, G = S::QUERIES;
  consumer_sync();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    u32* arrivals = to.arrivals + row * S::KV_HEADS + head;
    space.last = atomicAdd(arrivals, 1u) == u32(chunks - 1);
    if (space.last) *arrivals = 0;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  consumer_sync();
  if (!space.last) return;
#pragma unroll 1
  for (int o = threadIdx.x; o < G * D; o += CONSUMERS) {
    const int g = o / D, d = o % D;
    const float* partial = to.partial + u64(row * S::HEADS + head * G + g) * MAX_CHUNKS * (D + 2);
    float peak = LOWEST;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) peak = fmaxf(peak, __ldcg(partial + c * (D + 2) + D));
    float total = 0, mass = 0;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const float weight = __expf(__ldcg(partial + c * (D + 2) + D) - peak);
      total = fmaf(weight, __ldcg(partial + c * (D + 2) + d), total);
      mass = fmaf(weight, __ldcg(partial + c * (D + 2) + D + 1), mass);
    }
    to.attention[row * S::ATTENTION + (head * G + g) * D + d] = narrow(total / mass);
  }
}

// One unit: scores, softmax and weighted values of CHUNK positions for the query heads of one key/value head. `first`
// is the first row of this pass that belongs to the row's stream: keys and values from its position on are not in the
// pages yet, or are being written there by another block, and come from `qkv`.
template <class S>
__device__ void attend_chunk(const Buffers& to, const Cache& cache, const float* norms, const float* rope, float eps,
                             int row, int first, int head, int chunk, int chunks, AttentionSpace& space) {
  constexpr int D = S::HEAD_DIM, G = S::QUERIES, SHARE = D / 8;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, thread = threadIdx.x;
  const int position = cache.position[row], fresh_from = cache.position[first];
  const int start = chunk * CHUNK, length = min(CHUNK, position + 1 - start);
  const u64 page_elements = u64(2) * S::KV_HEADS * PAGE * D;
  const auto keys_of = [&](int at) {
    return cache.pages + cache.page(row, (start + at) / PAGE) * page_elements + (u64(head) * PAGE + at % PAGE) * D;
  };
  constexpr u64 TO_VALUES = u64(S::KV_HEADS) * PAGE * D;
#pragma unroll 1
  for (int job = warp; job < G + row - first + 1; job += WARPS) {
    const int other = first + job - G;
    const bool query = job < G;
    const float* source = to.qkv + (query ? row : other) * S::QKV + (query ? head * G + job : S::HEADS + head) * D;
    norm_and_rotate<D>(source, query ? norms + S::HIDDEN : norms + S::HIDDEN + D, rope,
                       query ? position : cache.position[other], eps, query ? rsqrtf(float(D)) : 1.f, !query,
                       query ? space.query[job] : space.key[job - G]);
  }
  consumer_sync();
  if (chunk == chunks - 1 && thread < D) {
    u16* key = keys_of(position - start);
    key[thread] = narrow(space.key[row - first][thread]);
    key[TO_VALUES + thread] = narrow(__ldcg(to.qkv + row * S::QKV + (S::HEADS + S::KV_HEADS + head) * D + thread));
  }

  // Scores: eight lanes a position.
  const int d0 = (lane & 7) * SHARE;
#pragma unroll 2
  for (int base = 0; base < length; base += WARPS * 4) {
    const int at = base + warp * 4 + lane / 8, p = start + at;
    float k[SHARE] = {};
    if (at < length) {
      if (p >= fresh_from) {
#pragma unroll
        for (int j = 0; j < SHARE; ++j) k[j] = space.key[p - fresh_from][d0 + j];
      } else {
        const uint2* stored = reinterpret_cast<const uint2*>(keys_of(at) + d0);
#pragma unroll
        for (int j = 0; j < SHARE / 4; ++j) {
          const uint2 four = __ldcg(stored + j);
          k[4 * j] = low_half(four.x), k[4 * j + 1] = high_half(four.x);
          k[4 * j + 2] = low_half(four.y), k[4 * j + 3] = high_half(four.y);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float dot = 0;
#pragma unroll
      for (int j = 0; j < SHARE; ++j) dot = fmaf(k[j], space.query[g][d0 + j], dot);
      dot = warp_sum(dot, 8);
      if ((lane & 7) == 0) space.score[g][at] = at < length ? dot : LOWEST;
    }
  }
  consumer_sync();
  float peak[G];
#pragma unroll
  for (int g = 0; g < G; ++g) {
    peak[g] = LOWEST;
#pragma unroll 1
    for (int at = lane; at < length; at += 32) peak[g] = fmaxf(peak[g], space.score[g][at]);
    peak[g] = warp_max(peak[g]);
  }
  consumer_sync();
  if (thread < length) {
#pragma unroll
    for (int g = 0; g < G; ++g) space.score[g][thread] = __expf(space.score[g][thread] - peak[g]);
  }
  consumer_sync();

  // Weighted values: each lane two neighbouring dimensions, the positions dealt to the quarters of the warp.
  const int pair = warp * 8 + (lane & 7), part = lane >> 3;
  if (pair >= D / 2) return;
  float low[G] = {}, high[G] = {}, mass[G] = {};
#pragma unroll 4
  for (int at = part; at < length; at += 4) {
    const int p = start + at;
    float a, b;
    if (p >= fresh_from) {
      const float* fresh = to.qkv + (first + p - fresh_from) * S::QKV + (S::HEADS + S::KV_HEADS + head) * D + pair * 2;
      a = widen(narrow(__ldcg(fresh))), b = widen(narrow(__ldcg(fresh + 1)));
    } else {
      const u32 both = __ldcg(reinterpret_cast<const u32*>(keys_of(at) + TO_VALUES) + pair);
      a = low_half(both), b = high_half(both);
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float w = space.score[g][at];
      low[g] = fmaf(w, a, low[g]);
      high[g] = fmaf(w, b, high[g]);
      mass[g] += w;
    }
  }
#pragma unroll
  for (int g = 0; g < G; ++g) {
#pragma unroll
    for (int step = 8; step < 32; step *= 2) {
      low[g] += __shfl_xor_sync(0xffffffffu, low[g], step);
      high[g] += __shfl_xor_sync(0xffffffffu, high[g], step);
      mass[g] += __shfl_xor_sync(0xffffffffu, mass[g], step);
    }
    if (part != 0) continue;
    const int query = head * G + g;
    if (chunks == 1) {
      u32* out = reinterpret_cast<u32*>(to.attention + row * S::ATTENTION + query * D);
      out[pair] = pack(low[g] / mass[g], high[g] / mass[g]);
    } else {
      float* partial = to.partial + (u64(row * S::HEADS + query) * MAX_CHUNKS + chunk) * (D + 2);
      partial[pair * 2] = low[g], partial[pair * 2 + 1] = high[g];
      if (pair == 0) partial[D] = peak[g], partial[D + 1] = mass[g];
    }
  }
}

template <class S>
__device__ __noinline__ void attend(const Buffers& to, const Cache& cache, const float* norms, const float* rope, float eps,
                                    int rows, AttentionSpace& space) {
  int unit = blockIdx.x, first = 0;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    if (cache.slot[row] != cache.slot[first]) first = row;
    const int chunks = cache.position[row] / CHUNK + 1;
#pragma unroll 1
    for (; unit < chunks * S::KV_HEADS; unit += BLOCKS) {
      attend_chunk<S>(to, cache, norms, rope, eps, row, first, unit % S::KV_HEADS, unit / S::KV_HEADS, chunks, space);
      if (chunks > 1) combine<S>(to, row, unit % S::KV_HEADS, chunks, space);
      consumer_sync();
    }
    unit -= chunks * S::KV_HEADS;
  }
}

// Attention of single positions over paged keys and values. Each warp takes 16 positions of a unit; the block that finishes the
// last unit of a (row, head) combines its chunks in a fixed order.
#pragma once
#include "activation.cuh"
#include "pipeline.cuh"
#include "units.cuh"

using OwnUnit = WorkUnit<RowsAtWork>;

// The first position of this warp.
__device__ inline int first_position(const OwnUnit& unit) { return unit.chunk * CHUNK + own_warp() * 16; }

// Keys and values of a warp's positions, in registers.
template <int D>
struct Positions {
  Keys<D> key;
  Values<D> value;

  // Takes positions of the talker's earlier passes from the ring.
  __device__ void take(const OwnUnit& unit, PipelineState& ring) {
    constexpr int TOGETHER = stored_together(D);
    const int own = own_warp() * 16, own_begin = own / TOGETHER * TOGETHER, count = unit.stored_of(own_begin, TOGETHER);
    const auto pass = [&](int begin, int end) {
#pragma unroll 1
      for (; begin < end && unit.stored_of(begin, TOGETHER) > 0; begin += TOGETHER) {
        wait_for_stage(ring);
        release_stage(ring);
      }
    };
    pass(0, own_begin);
    if (count > 0) {
      const Stored* keys = reinterpret_cast<const Stored*>(wait_for_stage(ring));
      load(keys, keys + count * D, own - own_begin, count - 1, [](const uint4* vector) { return *vector; });
      release_stage(ring);
    } else {
      *this = {};
    }
    pass(own_begin + TOGETHER, CHUNK);
  }

  // Reads positions of the predictor's earlier passes from its pages, which no block writes now.
  __device__ void read(const OwnUnit& unit, int layer) {
    static_assert(GROUPS <= PAGE);
    const Stored* keys = unit.key(layer, 0, D);
    load(keys, keys + OwnUnit::values_apart(D), own_warp() * 16, max(unit.fresh_from() - 1, 0),
         [](const uint4* vector) { return __ldcg(vector); });
  }

  // Adds the positions of this pass.
  __device__ void add_fresh(const OwnUnit& unit) {
    const AttentionSpace& space = shared().attention;
    const int ahead = first_position(unit) - unit.fresh_from(), count = unit.position() - unit.fresh_from() + 1;
    if (ahead + 16 <= 0 || ahead >= count) return;
    const auto fresh = [&](int p) { return p + ahead >= 0 && p + ahead < count; };
    const Lane own;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = h * 8 + own.place;
      if (fresh(p)) copy_vectors(key[h], &space.fresh[0][p + ahead][own.quarter * 8], KBLOCK);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int p = own.quarter * 2 + value_place(e);
      if (fresh(p) && own.place * 8 < D) copy_vectors(value[e], &space.fresh[1][p + ahead][own.place * 8], 64);
    }
  }

  template <class Read>
  __device__ void load(const Stored* keys, const Stored* values, int first, int last, Read read) {
    load_keys<D>(key, Lane(), keys, first, last, read);
    load_values<D>(value, Lane(), values, first, last, read);
  }
  template <int N>
  __device__ static void copy_vectors(uint4 (&to)[N], const Stored* source, int apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = *reinterpret_cast<const uint4*>(source + i * apart);
  }
};

// Queries, and the keys and values of this pass, as soon as they are there: RMSNorm over the head, then rotary embedding (not
// of values). A warp takes one head at a time, a lane four neighbouring dimensions; a lane D / 8 further holds their partners.
template <int D, int G>
__device__ __noinline__ void prepare_heads(OwnUnit unit, const float* norms) {
  Shared& s = shared();
  const int lane = threadIdx.x & 31, d = lane * 4 % D;
  const int first = unit.row - unit.nth(), fresh = unit.nth() + 1;  // of the rows of this stream, and how many up to this one
  const bool mine = lane < D / 4;
  const int kv_heads = s.pass.sizes.kv_heads;
  const u32 tag = tag_of_phase(0);
#pragma unroll 1
  for (int job = threadIdx.x >> 5; job < G + 2 * fresh; job += WARPS) {
    const bool query = job < G, value = job >= G + fresh;
    const int nth = query ? unit.nth() : (job - G) - (value ? fresh : 0);
    const int index = query ? unit.head * G + job : G * kv_heads + unit.head + (value ? kv_heads : 0);
    const float* source = s.to.qkv + (first + nth) * s.pass.sizes.qkv + index * D + d;
    const float4 weight = value ? float4{} : __ldg(reinterpret_cast<const float4*>(norms + (query ? 0 : D) + d));
    const Quad quad = await_quad(source, tag);
    __syncwarp();
    float4 x = quad.values();
    if (!value) x = norm_and_rotate(x, weight, Angles<D>(s.rope[first + nth]), s.pass.eps, query);
    if (!mine) continue;
    if (query) {
      Queries<D, G>::put(s.attention.query, job, d, x);
    } else {
      *reinterpret_cast<uint2*>(&s.attention.fresh[value][nth][d]) = {pack(x.x, x.y), pack(x.z, x.w)};
    }
  }
}

// Scores, softmax and weighted values of this warp's positions.
template <int D, int G>
__device__ __forceinline__ void attend_positions(const OwnUnit& unit, const Positions<D>& positions, int buffer) {
  AttentionSpace& space = shared().attention;
  AttentionShares& shares = space.shares[buffer];
  const int warp = own_warp();
  const Lane own;
  const auto [query, quarter] = own;
  float score[2][2];
  const Queries<D, G> queries(own, space.query);
  const float peak = score_positions(positions.key, own, queries, unit.position() - first_position(unit), score);
  const Weights weights(score, peak);
  if (query < G && quarter == 0) shares.peak[warp][query] = peak, shares.mass[warp][query] = weights.mass;
#pragma unroll
  for (int half = 0; half < HALVES<D>; ++half) {
    float4 total[4];
    sum_values<D>(positions.value, half, weights, total);
    const int d = half * 64 + quarter * 16;
    if (query < G && d < D) {
#pragma unroll
      for (int part = 0; part < 4; ++part) four(&shares.total[warp][query][d + part * 4]) = total[part];
    }
  }
}

// The pages of a row get its own key and value.
template <int D>
__device__ void append(const OwnUnit& unit, int layer) {
  const int value = threadIdx.x / (D / 2), pair = threadIdx.x % (D / 2), to = swizzled_dimension(2 * pair, unit.position(), D);
  if (!unit.last() || value > 1) return;
  Stored* key = unit.key(layer, unit.position(), D);
  const Stored* fresh = shared().attention.fresh[value][unit.nth()];
  *reinterpret_cast<u32*>(key + value * OwnUnit::values_apart(D) + to) = reinterpret_cast<const u32*>(fresh)[pair];
}

// Four dimensions of a row's attention, from the weighted sum of its values.
__device__ inline void finish_attention(int row, int column, float4 total, float mass) {
  const Shared& s = shared();
  const u32 low = pack(__fdividef(total.x, mass), __fdividef(total.y, mass));
  const u32 high = pack(__fdividef(total.z, mass), __fdividef(total.w, mass));
  publish_quad(s.to.attention + row * s.pass.sizes.attention + column,
            {low_half(low), high_half(low), low_half(high), high_half(high)}, tag_of_phase(1));
}

// The warps' shares together: the row's attention, or the part of one chunk.
template <int D, int G>
__device__ void finish_chunk(const OwnUnit& unit, int buffer) {
  const Shared& s = shared();
  const AttentionShares& shares = s.attention.shares[buffer];
  const int worker = (threadIdx.x + buffer * (CONSUMERS / 2)) % CONSUMERS;  // in buffer, too: others are ahead meanwhile
#pragma unroll 1
  for (int o = worker * 4; o < G * D; o += CONSUMERS * 4) {
    const int g = o / D, d = o % D, query = unit.head * G + g;
    float peak = NO_PEAK, mass = 0;
    float4 total{};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, shares.peak[w][g]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float share = __expf(shares.peak[w][g] - peak);
      mass = fmaf(share, shares.mass[w][g], mass);
      add_share(total, share, *reinterpret_cast<const float4*>(&shares.total[w][g][d]));
    }
    if (unit.chunks() == 1) {
      finish_attention(unit.row, query * D + d, total, mass);
    } else {
      float* partial = s.to.partial + (u64(unit.row * s.pass.sizes.kv_heads * G + query) * MAX_CHUNKS + unit.chunk) * (D + CHUNK_STATS);
      *reinterpret_cast<float4*>(partial + d) = total;
      if (d == 0) *reinterpret_cast<float2*>(partial + D) = float2{peak, mass};
    }
  }
}

// This block has finished these chunks of the unit's head; if they were the last ones, it combines all chunks.
template <int D, int G>
__device__ void combine_chunks(const OwnUnit& unit, int finished) {
  Shared& s = shared();
  consumer_sync();
  if (threadIdx.x == 0) {
    u32* arrivals = s.to.arrivals + unit.row * s.pass.sizes.kv_heads + unit.head;
    const u32 before = add_acquire_release(arrivals, finished);
    s.attention.last = before + finished == u32(unit.chunks());
    if (s.attention.last) *arrivals = 0;
  }
  consumer_sync();
  if (!s.attention.last) return;
#pragma unroll 1
  for (int o = threadIdx.x * 4; o < G * D; o += CONSUMERS * 4) {
    const int query = unit.head * G + o / D, d = o % D;
    const float* partial = s.to.partial + u64(unit.row * s.pass.sizes.kv_heads * G + query) * MAX_CHUNKS * (D + CHUNK_STATS);
    float mass;
    const float4 total = combined<D>(partial, D + CHUNK_STATS, unit.chunks(), d, mass);
    finish_attention(unit.row, query * D + d, total, mass);
  }
}

// One phase. Stored keys and values do not depend on it: the ring brings the talker's, and the first unit's are read while the
// fresh ones are awaited. False: leave the kernel.
template <int D, int G>
__device__ __forceinline__ bool attend(int layer) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const auto range = WorkRange<RowsAtWork>::own();
  if (range.count() == 0) return end_phase(false);
  PipelineState ring = own_state().ring;
  OwnUnit unit;
  unit.find(range.begin);
  int finished = 0;  // chunks of this head
#pragma unroll 1
  for (int left = range.count(); left > 0; --left, unit.advance()) {
    Positions<D> positions;
    if (s.pass.stream) {
      positions.take(unit, ring);
    } else {
      positions.read(unit, layer);
    }
    if (finished == 0) {
      await_async_copies();
      consumer_sync();  // the head before is not in use any more, and all copies have landed
      prepare_heads<D, G>(unit, s.pass.norms + layer * z.norms + z.hidden);
      consumer_sync();
      if (!all_arrived()) return false;
      if (threadIdx.x == 0 && left == range.count()) stamp(1);
    }
    append<D>(unit, layer);
    positions.add_fresh(unit);
    attend_positions<D, G>(unit, positions, left & 1);
    consumer_sync();
    finish_chunk<D, G>(unit, left & 1);
    ++finished;
    if (left == 1 || unit.last()) {
      if (unit.chunks() > 1) combine_chunks<D, G>(unit, finished);
      finished = 0;
    }
  }
  if ((threadIdx.x & 31) == 0) own_state().ring = ring;
  consumer_sync();  // the next phase has other uses for the space
  return end_phase(true);
}

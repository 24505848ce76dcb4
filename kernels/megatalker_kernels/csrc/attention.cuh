// Attention of single positions over paged keys and values. Each warp takes 16 positions of a unit; the block that finishes the
// last unit of a (row, head) combines its chunks in a fixed order. Products run on tensor cores; their float32 operand is
// split in two bfloat16.
#pragma once
#include "activation.cuh"
#include "pipeline.cuh"
#include "units.cuh"

constexpr float NO_PEAK = -1e30f;  // of no positions: larger than minus infinity, so that differences are numbers

using OwnUnit = WorkUnit<RowsAtWork>;

// Of this thread: a lane is 4 * place + quarter.
__device__ inline int own_warp() { return own_thread() >> 5; }
__device__ inline int own_place() { return own_thread() >> 2 & 7; }
__device__ inline int own_quarter() { return own_thread() & 3; }

// The first position of this warp.
__device__ inline int first_position(const OwnUnit& unit) { return unit.chunk * CHUNK + own_warp() * 16; }

// A warp's 16 keys as operand B of scores (positions are its rows), and its values as operand B of their weighted sum
// (dimensions are its rows): each lane's vectors of eight dimensions.
template <int D>
struct Positions {
  static constexpr int KEY_VECTORS = D / KBLOCK, HALVES = (D + 63) / 64;
  uint4 key[2][KEY_VECTORS];  // of position 8 * h + place, dimensions 32 * vector + 8 * quarter ...
  uint4 value[4][HALVES];    // of position 2 * quarter + place_of(e), dimensions 64 * half + 8 * place ...

  __device__ static constexpr int place_of(int e) { return e % 2 + e / 2 * 8; }

  // Those of the talker's earlier passes, from the ring.
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

  // Those of the predictor's earlier passes, from its pages. Nobody writes them now.
  __device__ void read(const OwnUnit& unit, int layer) {
    static_assert(GROUPS <= PAGE);
    const Stored* keys = unit.key(layer, 0, D);
    load(keys, keys + OwnUnit::values_apart(D), own_warp() * 16, max(unit.fresh_from() - 1, 0),
         [](const uint4* vector) { return __ldcg(vector); });
  }

  // Those of this pass.
  __device__ void add_fresh(const OwnUnit& unit) {
    const AttentionSpace& space = shared().attention;
    const int ahead = first_position(unit) - unit.fresh_from(), count = unit.position() - unit.fresh_from() + 1;
    if (ahead + 16 <= 0 || ahead >= count) return;
    const auto fresh = [&](int p) { return p + ahead >= 0 && p + ahead < count; };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = h * 8 + own_place();
      if (fresh(p)) copy_vectors(key[h], &space.fresh[0][p + ahead][own_quarter() * 8], KBLOCK);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int p = own_quarter() * 2 + place_of(e);
      if (fresh(p) && own_place() * 8 < D) copy_vectors(value[e], &space.fresh[1][p + ahead][own_place() * 8], 64);
    }
  }

  // The positions from `first` on of those that begin at `keys` and `values`. What is not there must be numbers: the last one
  // again.
  template <class Read>
  __device__ void load(const Stored* keys, const Stored* values, int first, int last, Read read) {
    const auto vector = [&](const Stored* from, int at, int dimension) {
      const int position = min(first + at, last);
      return read(reinterpret_cast<const uint4*>(from + position * D + swizzled_dimension(dimension, position, D)));
    };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < KEY_VECTORS; ++i) key[h][i] = vector(keys, h * 8 + own_place(), i * KBLOCK + own_quarter() * 8);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < HALVES; ++i) value[e][i] = vector(values, own_quarter() * 2 + place_of(e), i * 64 + own_place() * 8 % D);
    }
  }
  template <int N>
  __device__ static void copy_vectors(uint4 (&to)[N], const Stored* source, int apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = *reinterpret_cast<const uint4*>(source + i * apart);
  }
};

// What rounding took away from a pair of numbers, rounded.
__device__ inline u32 pack_rest(u32 rounded, float first, float second) {
  return pack(first - low_half(rounded), second - high_half(rounded));
}

// Queries, and the keys and values of this pass, as soon as they are there: RMSNorm over the head, then rotary embedding (not
// of values). A warp takes one head at a time, a lane four neighbouring dimensions; a lane D / 8 further holds their partners.
template <int D, int G>
__device__ __noinline__ void prepare_heads(OwnUnit unit, const float* norms) {
  Shared& s = shared();
  const int lane = threadIdx.x & 31, d = lane * 4 % D;
  const int first = unit.row - unit.nth(), fresh = unit.nth() + 1;  // of the rows of this stream, and how many up to this one
  const bool near = d < D / 2, mine = lane < D / 4;
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
    float x[4] = {quad[0], quad[1], quad[2], quad[3]};
    if (!value) {
      const float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
      const float sum = warp_sum(mine ? squares : 0.f);
      const float factor = rsqrtf(sum * (1.f / D) + s.pass.eps) * (query ? rsqrtf(float(D)) : 1.f);
      const float* rope = s.rope[first + nth];
      const float4 cosine = *reinterpret_cast<const float4*>(rope + d % (D / 2));
      const float4 sine = *reinterpret_cast<const float4*>(rope + D / 2 + d % (D / 2));
      const float w[4] = {weight.x, weight.y, weight.z, weight.w}, c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
      const float t[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] *= factor * w[e];
        const float partner = __shfl_xor_sync(0xffffffffu, x[e], D / 8);
        x[e] = x[e] * c[e] + (near ? -partner : partner) * t[e];
      }
    }
    if (!mine) continue;
    const uint2 pairs{pack(x[0], x[1]), pack(x[2], x[3])};
    const auto put = [&](void* place, uint2 four) { *reinterpret_cast<uint2*>(place) = four; };
    if (query) {
      const auto place = [&](int rest) {
        return reinterpret_cast<Operand*>(s.attention.query[rest]) + (d / KBLOCK * G + job) * KBLOCK + d % KBLOCK;
      };
      put(place(0), pairs);
      put(place(1), {pack_rest(pairs.x, x[0], x[1]), pack_rest(pairs.y, x[2], x[3])});
    } else {
      put(&s.attention.fresh[value][nth][d], pairs);
    }
  }
}

// Scores, softmax and weighted values of this warp's positions.
template <int D, int G>
__device__ __forceinline__ void attend_positions(const OwnUnit& unit, const Positions<D>& positions, int buffer) {
  AttentionSpace& space = shared().attention;
  AttentionShares& shares = space.shares[buffer];
  const int warp = own_warp(), query = own_place(), quarter = own_quarter();
  float score[2][4] = {};
#pragma unroll
  for (int vector = 0; vector < Positions<D>::KEY_VECTORS; ++vector) {
    uint4 q{0, 0, 0, 0}, rest{0, 0, 0, 0};
    if (query < G) {
      q = space.query[0][(vector * G + query) * 4 + quarter];
      rest = space.query[1][(vector * G + query) * 4 + quarter];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4& k = positions.key[h][vector];
      mma(score[h], q.x, rest.x, q.y, rest.y, k.x, k.y);
      mma(score[h], q.z, rest.z, q.w, rest.w, k.z, k.w);
    }
  }
  const int left = unit.position() - first_position(unit);  // positions up to here count
  float weight[2][2], peak = NO_PEAK, mass = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      weight[h][e] = h * 8 + quarter * 2 + e <= left ? score[h][e] + score[h][e + 2] : LOWEST;
      peak = fmaxf(peak, weight[h][e]);
    }
  }
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
  u32 whole[2], rest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float first = __expf(weight[h][0] - peak), second = __expf(weight[h][1] - peak);
    mass += first + second;
    whole[h] = pack(first, second);
    rest[h] = pack_rest(whole[h], first, second);
  }
  mass += __shfl_xor_sync(0xffffffffu, mass, 1);
  mass += __shfl_xor_sync(0xffffffffu, mass, 2);
  if (query < G && quarter == 0) shares.peak[warp][query] = peak, shares.mass[warp][query] = mass;
#pragma unroll
  for (int half = 0; half < Positions<D>::HALVES; ++half) {
    float total[2][8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto words = [&](int e) {
        const uint4& v = positions.value[e][half];
        return j / 2 == 0 ? v.x : j / 2 == 1 ? v.y : j / 2 == 2 ? v.z : v.w;
      };
      const u32 select = j % 2 ? 0x7632 : 0x5410;
      float c[4] = {};
      mma(c, whole[0], rest[0], whole[1], rest[1], __byte_perm(words(0), words(1), select),
          __byte_perm(words(2), words(3), select));
      total[0][j] = c[0] + c[2], total[1][j] = c[1] + c[3];
    }
    const int d = half * 64 + quarter * 16;
    if (query < G && d < D) {
      float4* out = reinterpret_cast<float4*>(&shares.total[warp][query][d]);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float* four = &total[part / 2][part % 2 * 4];
        out[part] = float4{four[0], four[1], four[2], four[3]};
      }
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

__device__ inline void add_share(float4& sum, float share, float4 value) {
  sum.x = fmaf(share, value.x, sum.x), sum.y = fmaf(share, value.y, sum.y);
  sum.z = fmaf(share, value.z, sum.z), sum.w = fmaf(share, value.w, sum.w);
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

// This block has finished so many chunks of the unit's head; if they were the last ones, all are put together.
template <int D, int G>
__device__ void combine_chunks(const OwnUnit& unit, int finished) {
  constexpr int AT_ONCE = 4;
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
    float peak = NO_PEAK, mass = 0;
    float4 total{};
#pragma unroll 1
    for (int c = 0; c < unit.chunks(); c += AT_ONCE) {
      float2 ends[AT_ONCE];
      float4 totals[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float* one = partial + (c + i) * (D + CHUNK_STATS);
        const bool there = c + i < unit.chunks();
        ends[i] = there ? __ldcg(reinterpret_cast<const float2*>(one + D)) : float2{NO_PEAK, 0.f};
        totals[i] = there ? __ldcg(reinterpret_cast<const float4*>(one + d)) : float4{};
      }
      float higher = peak;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) higher = fmaxf(higher, ends[i].x);
      const float kept = __expf(peak - higher);
      const float4 before = total;
      total = float4{}, mass *= kept, peak = higher;
      add_share(total, kept, before);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float share = __expf(ends[i].x - peak);
        mass = fmaf(share, ends[i].y, mass);
        add_share(total, share, totals[i]);
      }
    }
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
    if (s.pass.page_table) {
      positions.take(unit, ring);
    } else {
      positions.read(unit, layer);
    }
    if (finished == 0) {
      await_async_copies();
      consumer_sync();  // nobody uses the head before, and all copies have landed
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

// The sampling contract of megatalker/sampling: the consumers of one block choose one code. All arithmetic is exact or
// integer, so the code equals the specification's.
#pragma once
#include "barrier.cuh"

constexpr u32 FULL = 0xffffffffu;
constexpr int GUMBEL_ROWS = MT_GUMBEL_ROWS, GUMBEL_SEGMENT_BITS = MT_GUMBEL_SEGMENT_BITS, GUMBEL_BITS = MT_GUMBEL_BITS;
constexpr int DECAY_SEGMENT_BITS = MT_DECAY_SEGMENT_BITS, DECAY_STEP_BITS = MT_DECAY_STEP_BITS;
constexpr float MAX_DISTANCE = MT_DECAY_ROWS / float(1 << DECAY_STEP_BITS - DECAY_SEGMENT_BITS) - .5f;  // in the table

// Larger floats have larger keys, both zeros the same; -inf is the smallest number.
__device__ inline u32 order_key(float value) {
  const u32 bits = __float_as_uint(__fadd_rn(value, 0.f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float key_value(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ inline i64 cubic(const i64* c, i64 x, int bits) {
  const longlong2* pair = reinterpret_cast<const longlong2*>(c);
  const longlong2 low = __ldg(pair), high = __ldg(pair + 1);
  i64 value = (high.y * x) >> bits;
  value = ((value + high.x) * x) >> bits;
  value = ((value + low.y) * x) >> bits;
  return value + low.x;
}

// Gumbel noise of one id: Philox4x32-10, counter (id / 4, codebook, frame, 0).
__device__ inline float gumbel(const u32* key, u32 id, u32 codebook, u32 frame) {
  constexpr u32 MULTIPLIERS[] = {MT_PHILOX_MULTIPLIERS}, WEYL[] = {MT_PHILOX_WEYL};
  u32 c[4] = {id / 4, codebook, frame, 0};
  u32 k0 = key[0], k1 = key[1];
#pragma unroll
  for (int round = 0; round < MT_PHILOX_ROUNDS; ++round) {
    const u32 high0 = __umulhi(MULTIPLIERS[0], c[0]), low0 = MULTIPLIERS[0] * c[0];
    const u32 high1 = __umulhi(MULTIPLIERS[1], c[2]), low1 = MULTIPLIERS[1] * c[2];
    c[0] = high1 ^ c[1] ^ k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1;
    c[3] = low0;
    k0 += WEYL[0];
    k1 += WEYL[1];
  }
  const u32 which = id % 4;
  const u32 word = which < 2 ? (which ? c[1] : c[0]) : (which == 2 ? c[2] : c[3]);
  const u32 numerator = (word >> 8) * 2 + 1;
  const bool upper = numerator > (1u << 24);
  const u32 bits = __float_as_uint(float(upper ? (1u << 25) - numerator : numerator));
  const int row = int(bits >> GUMBEL_SEGMENT_BITS) - (127 << 23 - GUMBEL_SEGMENT_BITS) + (upper ? GUMBEL_ROWS : 0);
  const i64 value = cubic(common().to.gumbel_table + row * 4, bits & ((1u << GUMBEL_SEGMENT_BITS) - 1), GUMBEL_SEGMENT_BITS);
  return __fmul_rn(__ll2float_rn(value), 1.f / (1u << GUMBEL_BITS));
}

// exp(-distance) in units of 2**-40.
__device__ inline i64 decay(float distance) {
  const u32 steps = u32(__fmul_rn(fminf(distance, MAX_DISTANCE), float(1u << DECAY_STEP_BITS)));
  const i64* row = common().to.decay_table + (steps >> DECAY_SEGMENT_BITS) * 4;
  return cubic(row, steps & ((1u << DECAY_SEGMENT_BITS) - 1), DECAY_SEGMENT_BITS);
}

// The float32 quotient, correctly rounded: a quotient of float32 numbers that is not in the middle between two of them is
// at least 2**-49 of itself away from there, and the product is closer than 2**-51 to the quotient.
__device__ inline float quotient(float value, double reciprocal) { return __double2float_rn(value * reciprocal); }

// One code to choose among the ids 0 ... count - 2 and `last_id`, which takes the place after them (it is the highest, so
// that ties are resolved alike).
struct Choice {
  const float* logits;
  const u32* seen;      // a bit for each id, or null
  const Filter* filter;
  const u32* key;
  float penalty;
  double inverse_penalty;
  u32 codebook, frame;
  int count, last_id;
  bool last_barred;     // counts where `seen` is given

  __device__ u32 id(int place) const { return place == count - 1 ? last_id : place; }
};

// The largest of all consumers' values.
__device__ inline u64 block_most(SamplerScratch& scratch, u64 value) {
  const u32 high = __reduce_max_sync(FULL, u32(value >> 32));
  const u32 low = __reduce_max_sync(FULL, u32(value >> 32) == high ? u32(value) : 0);
  if ((threadIdx.x & 31) == 0) scratch.best[threadIdx.x >> 5] = u64(high) << 32 | low;
  consumer_sync();
  u64 most = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) most = max(most, scratch.best[w]);
  return most;
}

// Keys that at least k keys reach, and that few more reach: every warp offers the largest key of each of its lanes, of
// which k / WARPS are enough.
__device__ inline u32 lower_bound(SamplerScratch& scratch, u32 top, u32 k) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  scratch.top[threadIdx.x] = top;
  if (lane == 0) scratch.bound[warp] = 0;
  __syncwarp();
  u32 rank = 0;
#pragma unroll 8
  for (int other = 0; other < 32; ++other) {
    const u32 theirs = scratch.top[warp * 32 + other];
    rank += theirs > top || (theirs == top && other < lane);
  }
  if (k <= CONSUMERS && rank == (k - 1) / WARPS) scratch.bound[warp] = top;
  if (rank == 0) scratch.peak[warp] = top;
  consumer_sync();
  u32 bound = FULL;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) bound = min(bound, scratch.bound[w]);
  return bound;
}

// The sum of all consumers' values, each of at most 2**44. Calls in a row take another of the three `place`s each.
__device__ inline i64 block_sum(SamplerScratch& scratch, i64 value, int place) {
  const u32 low = __reduce_add_sync(FULL, u32(value) & 0x3ffffffu), high = __reduce_add_sync(FULL, u32(value >> 26));
  if ((threadIdx.x & 31) == 0) scratch.sum[place][threadIdx.x >> 5] = (i64(high) << 26) + low;
  consumer_sync();
  i64 sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += scratch.sum[place][w];
  return sum;
}

// The largest key whose sum of `worth(candidate, key)` is `accepted`, where that of every smaller key is, too.
template <class Worth, class Accepted>
__device__ inline u32 largest_key(SamplerScratch& scratch, int listed, Worth worth, Accepted accepted) {
  u32 found = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const u32 tried = found | 1u << bit;
    i64 mine = 0;
#pragma unroll 1
    for (int c = threadIdx.x; c < listed; c += CONSUMERS) mine += worth(c, tried);
    if (accepted(block_sum(scratch, mine, bit & 1))) found = tried;
  }
  return found;
}

__device__ inline i64 weight_of(const Filter& filter, u32 peak, u32 key) {
  return filter.dropped < 0 ? 0 : decay(__fsub_rn(key_value(peak), key_value(key)));
}

// Candidates of lowest weight are dropped while their sum stays within the limit; equals stay or go together.
__device__ inline bool within_limit(const Filter& filter, i64 sum, i64 total) {
  return !(double(sum) > __dmul_rn(filter.dropped, double(total)));
}

// Drops the `listed` candidates that top-k or top-p exclude: a candidate's weight becomes negative. Few
// candidates, one a thread, are compared each with each.
__device__ inline void narrow_down_few(SamplerScratch& scratch, const Filter& filter, u32 k, int listed, u32 peak, bool all) {
  const int c = threadIdx.x;
  const u32 mine = c < listed ? scratch.key[c] : 0;
  u32 larger_keys = 0;
#pragma unroll 8
  for (int other = 0; other < listed && !all; ++other) larger_keys += scratch.key[other] > mine;
  if (c < listed) scratch.weight[c] = larger_keys < k ? weight_of(filter, peak, mine) : -1;
  if (filter.dropped < 0) return;
  consumer_sync();
  i64 total = 0, reached = 0;
#pragma unroll 4
  for (int other = 0; other < listed; ++other) {
    const i64 weight = max(scratch.weight[other], 0ll);
    total += weight;
    if (scratch.key[other] <= mine) reached += weight;
  }
  consumer_sync();
  if (c < listed && within_limit(filter, reached, total)) scratch.weight[c] = -1;
}

// Narrows down many candidates, by halving the range of keys.
__device__ inline void narrow_down_many(SamplerScratch& scratch, const Filter& filter, u32 k, int listed, u32 peak, bool all) {
  const auto counted = [&](int c, u32 key) -> i64 { return scratch.key[c] >= key; };
  const u32 least = all ? 0 : largest_key(scratch, listed, counted, [&](i64 count) { return count >= k; });
  i64 total = 0;
#pragma unroll 1
  for (int c = threadIdx.x; c < listed; c += CONSUMERS) {
    const i64 weight = scratch.key[c] >= least ? weight_of(filter, peak, scratch.key[c]) : -1;
    scratch.weight[c] = weight;
    total += max(weight, 0ll);
  }
  if (filter.dropped < 0) return;
  total = block_sum(scratch, total, 2);
  const auto weighed = [&](int c, u32 key) { return scratch.key[c] <= key ? max(scratch.weight[c], 0ll) : 0; };
  const u32 most = largest_key(scratch, listed, weighed, [&](i64 sum) { return within_limit(filter, sum, total); });
#pragma unroll 1
  for (int c = threadIdx.x; c < listed; c += CONSUMERS) {
    if (scratch.key[c] <= most) scratch.weight[c] = -1;
  }
}

// All consumers of a block. Every thread returns the id.
__device__ inline int choose(SamplerScratch& scratch, const Choice& choice) {
  constexpr int EACH = (CHOICES + CONSUMERS - 1) / CONSUMERS;
  const Filter& filter = *choice.filter;
  float value[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + CONSUMERS * i;
    value[i] = at < choice.count ? __ldcg(choice.logits + choice.id(at)) : LOWEST;
  }
  if (threadIdx.x == 0) scratch.count = 0;
  if (choice.seen) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int at = threadIdx.x + CONSUMERS * i;
      if (at >= choice.count) continue;
      const u32 id = choice.id(at);
      if (__ldcg(choice.seen + id / 32) >> (id % 32) & 1u) {
        value[i] = value[i] < 0 ? __fmul_rn(value[i], choice.penalty) : quotient(value[i], choice.inverse_penalty);
      }
      if (at == choice.count - 1 && choice.last_barred) value[i] = LOWEST;
    }
  }
  u32 key[EACH], top = 0;
  u64 best = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + CONSUMERS * i;
    if (filter.do_sample) value[i] = quotient(value[i], filter.inverse_temperature);
    key[i] = at < choice.count ? order_key(value[i]) : 0;
    top = max(top, key[i]);
    best = max(best, u64(key[i]) << 32 | u32(~choice.id(at)));
  }
  if (filter.do_sample) {
    const u32 k = min(u32(filter.top_k), u32(choice.count));
    const u32 bound = max(lower_bound(scratch, top, k), 1u);
    u32 mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) mine += key[i] >= bound;
    u32 place = mine;  // first of the warp's lanes before this one, then of all
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 before = __shfl_up_sync(FULL, place, step);
      if (lane >= step) place += before;
    }
    u32 start = lane == 31 ? atomicAdd(&scratch.count, place) : 0;
    place += __shfl_sync(FULL, start, 31) - mine;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (key[i] < bound) continue;
      scratch.key[place] = key[i];
      scratch.place[place++] = threadIdx.x + CONSUMERS * i;
    }
    consumer_sync();
    const int listed = scratch.count;
    u32 peak = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) peak = max(peak, scratch.peak[w]);
    const bool all = k == choice.count;
    if (listed <= CONSUMERS) narrow_down_few(scratch, filter, k, listed, peak, all);
    else narrow_down_many(scratch, filter, k, listed, peak, all);
    best = 0;
#pragma unroll 1
    for (int c = threadIdx.x; c < listed; c += CONSUMERS) {
      if (scratch.weight[c] < 0) continue;
      const u32 id = choice.id(scratch.place[c]);
      const float total = __fadd_rn(key_value(scratch.key[c]), gumbel(choice.key, id, choice.codebook, choice.frame));
      best = max(best, u64(order_key(total)) << 32 | ~id);
    }
  }
  const u32 id = ~u32(block_most(scratch, best));
  return id < u32(choice.count) || id == u32(choice.last_id) ? int(id) : 0;
}

// Code `codebook` of a row. The ids that can become code 0 are those below the suppressed ones, and end-of-speech. `Place` knows where
// in shared memory the row, its parameters and the scratch are: handed over as pointers, they would be read as if they could be anywhere.
template <class Place>
__device__ __noinline__ int choose_code(int index, int codebook) {
  const Buffers& to = common().to;
  const Row& row = Place::row(index);
  const Sampling& sampling = Place::sampling(index);
  const bool first = codebook == 0;
  Choice choice;
  choice.logits = first ? to.pending + u64(row.slot) * Talker::VOCAB
                        : to.predictor_logits + (u64(index) * (GROUPS - 1) + codebook - 1) * Predictor::VOCAB;
  choice.seen = first ? to.stream[row.slot].seen : nullptr;
  choice.filter = first ? &sampling.talker : &sampling.predictor;
  choice.key = sampling.key;
  choice.penalty = sampling.penalty;
  choice.inverse_penalty = sampling.inverse_penalty;
  choice.codebook = codebook, choice.frame = row.frame;
  choice.count = first ? FIRST_SUPPRESSED + 1 : Predictor::VOCAB;
  choice.last_id = first ? to.eos : Predictor::VOCAB - 1;
  choice.last_barred = row.frame < sampling.min_frames;
  return choose(Place::scratch(), choice);
}

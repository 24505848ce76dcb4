// The sampling contract of megatalker/sampling.py: the consumers of one block choose one code. All arithmetic is exact or integer, so the code equals the specification's.
#pragma once
#include "handover.cuh"
#include "number.cuh"

constexpr u32 FULL = 0xffffffffu;

// Larger floats have larger keys; -inf is the smallest number.
__device__ inline u32 order_key(float value) {
  const u32 bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float key_value(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ inline i64 cubic(const i64* c, i64 x, int bits) {
  i64 value = (c[3] * x) >> bits;
  value = ((value + c[2]) * x) >> bits;
  value = ((value + c[1]) * x) >> bits;
  return value + c[0];
}

// Gumbel noise of one id: Philox4x32-10, counter (id / 4, codebook, frame, 0).
__device__ inline float gumbel(const Buffers& to, const u32* key, u32 id, u32 codebook, u32 frame) {
  u32 c[4] = {id / 4, codebook, frame, 0};
  u32 k0 = key[0], k1 = key[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const u32 high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1;
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const u32 which = id % 4;
  const u32 word = which < 2 ? (which ? c[1] : c[0]) : (which == 2 ? c[2] : c[3]);
  const u32 numerator = (word >> 8) * 2 + 1;
  const bool upper = numerator > (1u << 24);
  const u32 bits = __float_as_uint(float(upper ? (1u << 25) - numerator : numerator));
  const int row = int(bits >> 19) - 127 * 16 + (upper ? 384 : 0);
  const i64 value = cubic(to.gumbel_table + row * 4, bits & ((1u << 19) - 1), 19);
  return __fmul_rn(__ll2float_rn(value), 0x1p-26f);
}

// exp(-distance) in units of 2**-40.
__device__ inline i64 decay(const Buffers& to, float distance) {
  const u32 steps = u32(__fmul_rn(fminf(distance, 31.5f), 0x1p20f));
  return cubic(to.decay_table + (steps >> 17) * 4, steps & ((1u << 17) - 1), 17);
}

constexpr int CHOICES = larger(FIRST_SUPPRESSED + 1, Predictor::VOCAB);

// Scratch of one choice, in shared memory.
struct Contest {
  u64 total[3];  // of block-wide reductions, in turns
  u32 key[CHOICES];
  u16 listed[CHOICES];
  u32 count;
};

// Block-wide reductions: one barrier each. A slot is cleared one turn before its use, when its readers are gone.
struct Jury {
  Contest& contest;
  int turn = 0;

  __device__ explicit Jury(Contest& c) : contest(c) {
    consumer_sync();
    if (threadIdx.x < 3) contest.total[threadIdx.x] = 0;
    if (threadIdx.x == 3) contest.count = 0;
    consumer_sync();
  }

  __device__ u64 settle() {
    const int mine = turn;
    turn = turn == 2 ? 0 : turn + 1;
    if (threadIdx.x == 0) contest.total[turn] = 0;
    consumer_sync();
    return contest.total[mine];
  }

  __device__ u64 sum(u64 value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(FULL, value, step);
    if ((threadIdx.x & 31) == 0) atomicAdd(&contest.total[turn], value);
    return settle();
  }

  // Three counts below 2**16 at once.
  __device__ u64 count(u32 first_two, u32 third) {
    const u64 sum = __reduce_add_sync(FULL, first_two) | u64(__reduce_add_sync(FULL, third)) << 32;
    if ((threadIdx.x & 31) == 0) atomicAdd(&contest.total[turn], sum);
    return settle();
  }

  __device__ u64 most(u64 value) {
    for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(FULL, value, step));
    if ((threadIdx.x & 31) == 0) atomicMax(&contest.total[turn], value);
    return settle();
  }
};

// All consumers of a block: the id that `filter` and the noise choose among the V ids 0 ... V - 2 and `last_id` (a score
// of -inf is barred). Every thread returns it.
template <int V, class Score>
__device__ __noinline__ int choose(const Buffers& to, const Filter& filter, const u32* key, u32 codebook, u32 frame,
                                   Contest& contest, int last_id, Score score) {
  constexpr int EACH = (V + CONSUMERS - 1) / CONSUMERS;
  Jury jury(contest);
  u32 mine[EACH];
  u64 best = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int at = threadIdx.x + CONSUMERS * i;
    mine[i] = 0;
    if (at < V) {
      const u32 id = at == V - 1 ? last_id : at;
      float value = score(id);
      if (filter.do_sample) value = __fdiv_rn(value, filter.temperature);
      mine[i] = order_key(value);
      contest.key[at] = mine[i];
      best = max(best, u64(mine[i]) << 32 | ~id);
    }
  }
  best = jury.most(best);
  if (filter.do_sample) {
    const u32 peak = u32(best >> 32);
    // The k-th largest key is the largest number that at least k keys reach: found two bits at a time.
    u32 threshold = 0;
    const u32 k = min(filter.top_k, V);
#pragma unroll 1
    for (int bit = 30; bit >= 0 && k < V; bit -= 2) {
      u32 low = 0, high = 0;
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        low += (mine[i] >= (threshold | 1u << bit)) | (mine[i] >= (threshold | 2u << bit)) << 16;
        high += mine[i] >= (threshold | 3u << bit);
      }
      const u64 reached = jury.count(low, high);
      const u32 step = (reached >> 32) >= k ? 3 : ((reached >> 16) & 0xffff) >= k ? 2 : (reached & 0xffff) >= k ? 1 : 0;
      threshold |= step << bit;
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int at = threadIdx.x + CONSUMERS * i;
      if (at < V && mine[i] >= threshold) contest.listed[atomicAdd(&contest.count, 1u)] = at;
    }
    consumer_sync();
    const int count = contest.count;
    if (filter.dropped >= 0) {
      const auto mass_below = [&](u64 limit) {
        i64 mass = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += CONSUMERS) {
          const u32 one = contest.key[contest.listed[i]];
          if (one < limit) mass += decay(to, __fsub_rn(key_value(peak), key_value(one)));
        }
        return double(i64(jury.sum(mass)));
      };
      const double limit = __dmul_rn(filter.dropped, mass_below(u64(1) << 32));
      // The largest bound below which the weights sum to at most the limit is the first key that exceeds it.
      u32 bound = 0;
#pragma unroll 1
      for (int bit = 31; bit >= 0; --bit) {
        if (!(mass_below(bound | 1u << bit) > limit)) bound |= 1u << bit;
      }
      threshold = max(threshold, min(bound, peak));
    }
    best = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += CONSUMERS) {
      const u32 at = contest.listed[i], one = contest.key[at];
      if (one < threshold) continue;
      const u32 id = at == V - 1 ? last_id : at;
      const float total = __fadd_rn(key_value(one), gumbel(to, key, id, codebook, frame));
      best = max(best, u64(order_key(total)) << 32 | ~id);
    }
    best = jury.most(best);
  }
  const u32 id = ~u32(best);
  return id < u32(V) || id == u32(last_id) ? int(id) : 0;
}

// Code 0 of a row, from its slot's pending logits. The ids that can be chosen are those below the suppressed ones, and
// end-of-speech, which takes the place after them (it is the highest of them, so that ties are resolved alike).
__device__ inline int choose_first(const Buffers& to, const Row& row, Contest& contest) {
  constexpr int V = Talker::VOCAB;
  const Sampling& sampling = to.sampling[row.slot];
  const float* logits = to.pending + u64(row.slot) * V;
  const u32* seen = to.seen + row.slot * (V / 32);
  const bool early = row.frame < sampling.min_frames;
  return choose<FIRST_SUPPRESSED + 1>(to, sampling.talker, sampling.key, 0, row.frame, contest, to.eos, [&](int id) {
    float logit = __ldcg(logits + id);
    if (__ldcg(seen + id / 32) >> (id % 32) & 1u) {
      logit = logit < 0 ? __fmul_rn(logit, sampling.penalty) : __fdiv_rn(logit, sampling.penalty);
    }
    return id == to.eos && early ? LOWEST : logit;
  });
}

// Code `codebook` of a row, from this block's view of the predictor's logits.
__device__ inline int choose_rest(const Buffers& to, const Row& row, int index, int codebook, Contest& contest) {
  constexpr int V = Predictor::VOCAB;
  const Sampling& sampling = to.sampling[row.slot];
  const float* logits = to.predictor_logits + (u64(index) * (GROUPS - 1) + codebook - 1) * V;
  return choose<V>(to, sampling.predictor, sampling.key, codebook, row.frame, contest, V - 1,
                   [&](int id) { return __ldcg(logits + id); });
}

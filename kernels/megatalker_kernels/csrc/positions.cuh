// Attention of one warp to 16 neighbouring positions of one key/value head, on tensor cores; what both kernels make of a position,
// bit for bit. The float32 operand of each product is split in two bfloat16. A lane is 4 * place + quarter.
#pragma once
#include "number.cuh"

constexpr float NO_PEAK = -1e30f;  // of no positions: larger than minus infinity, so that differences are numbers

template <int D>
constexpr int HALVES = (D + 63) / 64;
// Keys as operand B of scores (positions are its rows), and values as operand B of their weighted sum (dimensions are its rows):
// each lane's vectors of eight dimensions.
template <int D>
using Keys = uint4[2][D / KBLOCK];  // of position 8 * h + place, dimensions 32 * vector + 8 * quarter ...
template <int D>
using Values = uint4[4][HALVES<D>];  // of position 2 * quarter + value_place(e), dimensions 64 * half + 8 * place ...

__device__ constexpr int value_place(int e) { return e % 2 + e / 2 * 8; }

__device__ inline int own_warp() { return own_thread() >> 5; }

struct Lane {
  int place = own_thread() >> 2 & 7, quarter = own_thread() & 3;
};

// Place of a dimension of a stored key or value. Vectors of eight dimensions change places by their position, so that vectors that
// a warp reads at once from shared memory lie in different banks.
__device__ inline int swizzled_dimension(int dimension, int position, int head_dim) {
  return dimension ^ (((position & 6) ^ (position & 1) << 2) * 8 & head_dim - 1);
}

// Vector of eight dimensions of a position from `from` on. Missing positions must be finite numbers: the last one is read again.
template <int D, class Read>
__device__ inline uint4 stored_vector(const Stored* from, int at, int last, int dimension, Read read) {
  const int position = min(at, last);
  return read(reinterpret_cast<const uint4*>(from + position * D + swizzled_dimension(dimension, position, D)));
}

template <int D, class Read>
__device__ inline void load_keys(Keys<D>& key, const Lane& own, const Stored* from, int first, int last, Read read) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < D / KBLOCK; ++i) {
      key[h][i] = stored_vector<D>(from, first + h * 8 + own.place, last, i * KBLOCK + own.quarter * 8, read);
    }
  }
}

template <int D, class Read>
__device__ inline void load_values(Values<D>& value, const Lane& own, const Stored* from, int first, int last, Read read) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int i = 0; i < HALVES<D>; ++i) {
      value[e][i] = stored_vector<D>(from, first + own.quarter * 2 + value_place(e), last, i * 64 + own.place * 8 % D, read);
    }
  }
}

// Cosines and sines of the four dimensions 4 * lane % D ... of a head.
template <int D>
struct Angles {
  float4 cosine, sine;

  __device__ explicit Angles(const float* rope) {
    const float4* own = reinterpret_cast<const float4*>(rope + (own_thread() & 31) * 4 % (D / 2));
    cosine = own[0], sine = own[D / 8];
  }
};

// RMSNorm over a head and rotary embedding; a lane D / 8 further has the partners of this one's dimensions. Queries are divided by
// the root of D.
template <int D>
__device__ inline float4 norm_and_rotate(const float4& x, const float4& weight, const Angles<D>& angles, float eps, bool query) {
  const int lane = own_thread() & 31;
  const bool near = lane * 4 % D < D / 2;
  const auto& [cosine, sine] = angles;
  const float sum = warp_sum(lane < D / 4 ? sum_of_squares(x) : 0.f);
  const float factor = rsqrtf(fmaf(sum, 1.f / D, eps)) * (query ? rsqrtf(float(D)) : 1.f);
  const auto turn = [&](float value, float norm, float c, float s) {
    value *= factor * norm;
    const float partner = __shfl_xor_sync(0xffffffffu, value, D / 8);
    return fmaf(value, c, (near ? -partner : partner) * s);
  };
  const float first = turn(x.x, weight.x, cosine.x, sine.x), second = turn(x.y, weight.y, cosine.y, sine.y);
  const float third = turn(x.z, weight.z, cosine.z, sine.z), fourth = turn(x.w, weight.w, cosine.w, sine.w);
  return {first, second, third, fourth};
}

// The rounded errors of rounding a pair of numbers.
__device__ inline u32 pack_rest(u32 rounded, float first, float second) {
  return pack(first - low_half(rounded), second - high_half(rounded));
}

// Queries of a head as operands, vectors of one lane each: rounded in the first eight rows, in the others what rounding took away.
template <int D, int G>
struct Queries {
  static constexpr int VECTORS = D / 4 * G;
  uint4 operand[D / KBLOCK][2] = {};  // of the query of this lane's place; zeros where there is none

  // Four dimensions of a query, into all vectors.
  __device__ static void put(uint4* vectors, int query, int d, const float4& x) {
    const u32 first = pack(x.x, x.y), second = pack(x.z, x.w);
    vectors[((d / KBLOCK * G + query) * 4 + d % KBLOCK / 8) * 2 + d % 8 / 4] = {first, pack_rest(first, x.x, x.y), second,
                                                                                pack_rest(second, x.z, x.w)};
  }

  __device__ Queries(const Lane& own, const uint4* vectors) {
    if (own.place >= G) return;
#pragma unroll
    for (int i = 0; i < D / KBLOCK * 2; ++i) operand[i / 2][i % 2] = vectors[((i / 2 * G + own.place) * 4 + own.quarter) * 2 + i % 2];
  }
};

// Scores of the queries of the head, of which this lane gets the one of its place, for positions 8 * h + 2 * quarter + e; those up
// to `left` count. Returns the largest score.
template <int D, int G>
__device__ __forceinline__ float score_positions(const Keys<D>& key, const Lane& own, const Queries<D, G>& queries, int left,
                                                 float (&score)[2][2]) {
  float sums[2][4] = {};
#pragma unroll
  for (int i = 0; i < D / KBLOCK; ++i) {
    const uint4 &q = queries.operand[i][0], &r = queries.operand[i][1];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4& k = key[h][i];
      mma(sums[h], q.x, q.y, q.z, q.w, k.x, k.y);
      mma(sums[h], r.x, r.y, r.z, r.w, k.z, k.w);
    }
  }
  float peak = NO_PEAK;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      score[h][e] = h * 8 + own.quarter * 2 + e <= left ? sums[h][e] + sums[h][e + 2] : LOWEST;
      peak = fmaxf(peak, score[h][e]);
    }
  }
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
  return fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
}

// Weights made of scores, as operand of the sum of values.
struct Weights {
  u32 whole[2], rest[2];
  float mass = 0;

  __device__ Weights(const float (&score)[2][2], float peak) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float first = __expf(score[h][0] - peak), second = __expf(score[h][1] - peak);
      mass += first + second;
      whole[h] = pack(first, second);
      rest[h] = pack_rest(whole[h], first, second);
    }
    mass += __shfl_xor_sync(0xffffffffu, mass, 1);
    mass += __shfl_xor_sync(0xffffffffu, mass, 2);
  }
};

// Sums dimensions 64 * half + 16 * quarter ... + 15 of the values, for the query at this lane's place.
template <int D>
__device__ __forceinline__ void sum_values(const Values<D>& value, int half, const Weights& weights, float4 (&total)[4]) {
  float sum[2][8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const auto words = [&](int e) {
      const uint4& v = value[e][half];
      return j / 2 == 0 ? v.x : j / 2 == 1 ? v.y : j / 2 == 2 ? v.z : v.w;
    };
    const u32 select = j % 2 ? 0x7632 : 0x5410;
    float c[4] = {};
    mma(c, weights.whole[0], weights.rest[0], weights.whole[1], weights.rest[1], __byte_perm(words(0), words(1), select),
        __byte_perm(words(2), words(3), select));
    sum[0][j] = c[0] + c[2], sum[1][j] = c[1] + c[3];
  }
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const float* from = &sum[part / 2][part % 2 * 4];
    total[part] = {from[0], from[1], from[2], from[3]};
  }
}

__device__ inline void add_share(float4& sum, float share, float4 value) {
  sum.x = fmaf(share, value.x, sum.x), sum.y = fmaf(share, value.y, sum.y);
  sum.z = fmaf(share, value.z, sum.z), sum.w = fmaf(share, value.w, sum.w);
}

// Four dimensions of the weighted sum of all chunks of a query, and the sum of its weights, from the parts of its chunks, which
// lie `apart`.
template <int D>
__device__ inline float4 combined(const float* partial, int apart, int chunks, int d, float& mass) {
  constexpr int AT_ONCE = 4;
  float peak = NO_PEAK;
  mass = 0;
  float4 total{};
#pragma unroll 1
  for (int c = 0; c < chunks; c += AT_ONCE) {
    float2 ends[AT_ONCE];
    float4 totals[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float* one = partial + (c + i) * apart;
      const bool there = c + i < chunks;
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
  return total;
}

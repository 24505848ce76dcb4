// Inputs and outputs of the wide kernel's attention, for both stacks: the queries, the key and the value of a row and key/value
// head.
#pragma once
#include "positions.cuh"
#include "wide_rows.cuh"

// Calls `visit` with the units of this warp, of `count`: neighbours go to different blocks.
template <class Visit>
__device__ inline void each_of_warp(int count, Visit visit) {
#pragma unroll 1
  for (int number = own_warp() * BLOCKS + blockIdx.x; number < count; number += WARPS * BLOCKS) visit(number);
}

// A warp's part of them in shared memory.
template <class S>
struct WarpHeads {
  static constexpr int D = S::HEAD_DIM, G = S::QUERIES;
  uint4 query[Queries<D, G>::VECTORS];
  alignas(16) Stored fresh[2][D];  // key and value, as long as they are not where others are stored
};

// This lane's four dimensions of the norms of queries and keys.
template <class S>
struct HeadNorms {
  float4 query, key;

  __device__ HeadNorms(const float* norms, int layer) {
    const int d = (own_thread() & 31) * 4 % S::HEAD_DIM;
    const float4* own = reinterpret_cast<const float4*>(norms + layer * S::NORMS + S::HIDDEN + d);
    query = __ldg(own), key = __ldg(own + S::HEAD_DIM / 4);
  }
};

// Four dimensions per lane of the queries, the key and the value of a head, as the layer's first product left them.
template <class S>
struct WideHeads {
  static constexpr int D = S::HEAD_DIM, G = S::QUERIES;
  float4 x[G + 2];

  __device__ WideHeads(int row, int head) {
    const float* place = wide_shared().to.qkv + u64(row) * S::QKV + head * D + (own_thread() & 31) * 4 % D;
#pragma unroll
    for (int job = 0; job < G + 2; ++job) {
      const int which = job < G ? head * (G - 1) + job : S::KV_HEADS * job;
      x[job] = __ldcg(reinterpret_cast<const float4*>(place + which * D));
    }
  }

  __device__ void put_queries(WarpHeads<S>& space, const HeadNorms<S>& norms, const Angles<D>& angles, float eps) const {
    const int d = (own_thread() & 31) * 4;
#pragma unroll
    for (int job = 0; job < G; ++job) {
      const float4 query = norm_and_rotate(without_tags(x[job]), norms.query, angles, eps, true);
      if (d < D) Queries<D, G>::put(space.query, job, d, query);
    }
  }

  // Stores key and value: at position `position` of `stored` and `values_apart` further, and where both are needed at once.
  __device__ void append(Stored* stored, int values_apart, int position, WarpHeads<S>& space, const HeadNorms<S>& norms,
                         const Angles<D>& angles, float eps) const {
    const int d = (own_thread() & 31) * 4;
    const float4 key = norm_and_rotate(without_tags(x[G]), norms.key, angles, eps, false), value = without_tags(x[G + 1]);
    if (d >= D) return;
    Stored* place = stored + swizzled_dimension(d, position, D);
    const uint2 keys{pack(key.x, key.y), pack(key.z, key.w)}, values{pack(value.x, value.y), pack(value.z, value.w)};
    *reinterpret_cast<uint2*>(place) = keys, *reinterpret_cast<uint2*>(place + values_apart) = values;
    *reinterpret_cast<uint2*>(space.fresh[0] + d) = keys, *reinterpret_cast<uint2*>(space.fresh[1] + d) = values;
  }
};

// The result, four neighbouring dimensions, as the next product wants it.
__device__ inline uint2 shares_of(float4 total, float mass) {
  return {pack(__fdividef(total.x, mass), __fdividef(total.y, mass)), pack(__fdividef(total.z, mass), __fdividef(total.w, mass))};
}

// Writes dimensions of a query from `column` on, as sum_values leaves them.
__device__ inline void put_attention(int row, int column, const float4 (&total)[4], float mass) {
  const uint2 pairs[4] = {shares_of(total[0], mass), shares_of(total[1], mass), shares_of(total[2], mass), shares_of(total[3], mass)};
  put_sixteen(wide_shared().to.attention, row, column, pairs);
}

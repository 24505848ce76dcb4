// Attention of many rows of the predictor. A warp takes a row and a key/value head, and reads all positions at once: they are as few as
// one warp of the megakernel has.
#pragma once
#include "wide_heads.cuh"

static_assert(GROUPS <= 16);

// In a pass of pairs, it does both rows one after the other. False: leave the kernel.
__device__ __noinline__ bool attend_predictor(int layer) {
  using S = Predictor;
  constexpr int D = S::HEAD_DIM, G = S::QUERIES, HEADS = S::KV_HEADS, VALUES_APART = HEADS * GROUPS * D;
  const WideShared& s = wide_shared();
  auto& space = reinterpret_cast<WarpHeads<S>*>(wide_shared().arena)[own_warp()];
  const bool pairs = s.pass.kind == OF_PAIRS;
  const int last = s.pass.number;
  const Lane own;
  const auto [query, quarter] = own;
  const HeadNorms<S> norms(s.to.predictor_norms, layer);
  const auto read = [](const uint4* vector) { return __ldcg(vector); };
  const auto fresh = [&](int which, int d) { return *reinterpret_cast<const uint4*>(space.fresh[which] + d); };
  if (!await_phase()) return false;
  each_of_warp(s.launch.rows * HEADS, [&](int number) {
    const int stream = number / HEADS, head = number % HEADS;
    Stored* stored = s.to.predictor_kv + ((u64(layer) * s.wide.room + stream) * 2 * HEADS + head) * GROUPS * D;
#pragma unroll 1
    for (int position = pairs ? 0 : last; position <= last; ++position) {
      const int row = pairs ? 2 * stream + position : stream;
      const WideHeads<S> heads(row, head);
      const Angles<D> angles(s.to.predictor_rope + position * D);
      __syncwarp();
      Keys<D> key;
      load_keys<D>(key, own, stored, 0, max(position - 1, 0), read);
      Values<D> value;
      load_values<D>(value, own, stored + VALUES_APART, 0, max(position - 1, 0), read);
      heads.put_queries(space, norms, angles, s.pass.eps);
      heads.append(stored + position * D, VALUES_APART, position, space, norms, angles, s.pass.eps);
      __syncwarp();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (h * 8 + own.place != position) continue;
#pragma unroll
        for (int i = 0; i < D / KBLOCK; ++i) key[h][i] = fresh(0, i * KBLOCK + quarter * 8);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // missing positions, too, must be finite numbers
        if (quarter * 2 + value_place(e) < position) continue;
#pragma unroll
        for (int i = 0; i < HALVES<D>; ++i) value[e][i] = fresh(1, i * 64 + own.place * 8 % D);
      }
      float score[2][2];
      const float peak = score_positions(key, own, Queries<D, G>(own, space.query), position, score);
      const Weights weights(score, peak);
#pragma unroll
      for (int half = 0; half < HALVES<D>; ++half) {
        float4 total[4];
        sum_values<D>(value, half, weights, total);
        const int d = half * 64 + quarter * 16;
        if (query < G && d < D) put_attention(row, (head * G + query) * D + d, total, weights.mass);
      }
    }
  });
  return true;
}

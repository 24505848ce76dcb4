// Every matrix product and every convolution of the decoder: rows times weights, where a row is a window of `taps` input
// rows that lie `dilation` apart and end with the row itself. Tiles of both operands pass through a ring in shared memory. How they
// are brought there and multiplied is the business of a tile: those of warps.cuh run everywhere, those of warpgroup.cuh are faster.
#pragma once
#include "copy.cuh"
#include "epilogue.cuh"
#include "numbers.cuh"
#include "ticket.cuh"

struct Product {
  Input in;
  Epilogue epilogue;
  Tickets tickets;
  const float* weight;  // packed: [columns, taps, words], for warpgroups in the order of their stages
  float* partial;       // [shares, rows, columns], for sums of more than one share
  int* arrivals;        // [tiles] zeros, left as zeros
  int taps, dilation;
  int shares;   // number of blocks among which the window's columns are divided
  float eps;    // of root-mean-square normalisation of the input; none if negative
  float scale;  // what sums must be multiplied by: weights may be stored larger than they are
};

// Calls `read`, which says what a row of the tile has in this thread's eight columns, then `write` with that; all threads together for
// the whole tile. What is read comes from memory for `TOGETHER` rows at the same time.
template <class T, int TOGETHER, class Read, class Write>
__device__ inline void for_each_eight(const Product& p, int m0, Read read, Write write) {
  constexpr int LINES = T::THREADS / (T::COLUMNS / 8);
  const int line = threadIdx.x / (T::COLUMNS / 8), rows = min(T::ROWS, p.in.rows - m0);
  if (line >= LINES) return;
#pragma unroll 1
  for (int m = line; m < rows; m += LINES * TOGETHER) {
    Eight v[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      if (m + i * LINES < rows) v[i] = read(m + i * LINES);
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      if (m + i * LINES < rows) write(m + i * LINES, v[i]);
  }
}

// The block's share has been added up in shared memory: finish it, or leave that to the block that comes last.
template <class T>
__device__ inline void finish_tile(const Product& p, int m0, int n0, int tile, int share, float* sums, const float* total) {
  __shared__ bool last;
  const int columns = p.epilogue.columns, place = threadIdx.x % (T::COLUMNS / 8) * 8, n = n0 + place;
  const auto added = [&](int m) {
    Eight v = eight_at(sums, m * T::PITCH + place);
#pragma unroll
    for (int deep = 1; deep < T::DEEP; ++deep) v = v + eight_at(sums, (deep * T::ROWS + m) * T::PITCH + place);
    float factor = p.scale;
    if (p.eps >= 0) {
      float square = 0;
#pragma unroll
      for (int deep = 0; deep < T::DEEP; ++deep) square += total[deep * T::ROWS + m];
      factor *= 1.f / sqrtf(square / (p.in.words * Numbers::PER_WORD) + p.eps);
    }
    return Eight{v.front * factor, v.back * factor};
  };
  const auto keep = [&](int m, const Eight& v) { put_eight(sums + m * T::PITCH + place, v); };
  const Finisher finish(p.epilogue, n < columns ? n : 0);
  if (p.shares == 1) {
    if (n >= columns) return;
    for_each_eight<T, T::TOGETHER>(p, m0, [&](int m) { return finish.addend(m0 + m) + added(m); }, keep);
  } else {
    const i64 one = i64(p.in.rows) * columns;  // floats of a share's sums
    float* const partial = p.partial + i64(m0) * columns + n;
    const auto hand_over = [&](int m, const Eight& v) { put_eight(partial + share * one + i64(m) * columns, v); };
    if (n < columns) for_each_eight<T, 1>(p, m0, added, hand_over);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&p.arrivals[tile], 1) == p.shares - 1;
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) p.arrivals[tile] = 0;
    if (n >= columns) return;
    __threadfence();
    const auto all = [&](int m) {
      Eight v = finish.addend(m0 + m);
#pragma unroll 4
      for (int s = 0; s < p.shares; ++s) v = v + fresh_eight_at(partial + s * one + i64(m) * columns);
      return v;
    };
    for_each_eight<T, T::TOGETHER>(p, m0, all, keep);
  }
  const auto kept = [&](int m) { return eight_at(sums, m * T::PITCH + place); };
  for_each_eight<T, 1>(p, m0, kept, [&](int m, const Eight& v) { finish(m0 + m, v); });
}

// Blocks: column tiles, within row tiles, within shares.
template <class T>
__device__ inline void multiply(const Product& p) {
  extern __shared__ float4 ring[];
  const int wide = (p.epilogue.columns + T::COLUMNS - 1) / T::COLUMNS, high = (p.in.rows + T::ROWS - 1) / T::ROWS;
  const int tile = blockIdx.x % (wide * high), share = blockIdx.x / (wide * high);
  const int m0 = tile / wide * T::ROWS, n0 = tile % wide * T::COLUMNS;
  const int stages = T::stages(p);
  const int begin = i64(stages) * share / p.shares, end = i64(stages) * (share + 1) / p.shares;

  admit_successor();
  typename T::Loader loader(p, m0, n0, begin);
#pragma unroll
  for (int i = 0; i < T::STAGES - 1; ++i)
    if (begin + i < end) loader.load_weights(ring + i * T::STAGE);
  await_predecessor();
#pragma unroll
  for (int i = 0; i < T::STAGES - 1; ++i) {
    if (begin + i < end) loader.load_rows(ring + i * T::STAGE);
    commit_async_copies();
  }
  if (p.taps > 1) p.in.remember(p.tickets);
  if (p.shares == 1 && p.epilogue.residual) loader.prefetch_residual(m0, n0);
  typename T::Sums sums;
  for (int i = begin, now = 0, free = T::STAGES - 1; i < end; ++i) {
    await_async_copies_but<T::STAGES - 2>();
    loader.await_weights(now);
    __syncthreads();
    sums.begin(ring + now * T::STAGE);
    if (i + T::STAGES - 1 < end) {
      loader.load_weights(ring + free * T::STAGE);
      loader.load_rows(ring + free * T::STAGE);
    }
    commit_async_copies();
    sums.end(ring + now * T::STAGE, p.eps >= 0);
    free = now, now = now + 1 == T::STAGES ? 0 : now + 1;
  }
  __syncthreads();
  float* const added = reinterpret_cast<float*>(ring);
  float* const total = added + T::DEEP * T::ROWS * T::PITCH;
  sums.put(added, total);
  __syncthreads();
  finish_tile<T>(p, m0, n0, tile, share, added, total);
}

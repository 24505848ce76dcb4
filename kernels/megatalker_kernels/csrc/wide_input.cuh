// Inputs of a pass of the wide kernel: the codes chosen before it, and the rows' part of the residual stream.
#pragma once
#include "sampler.cuh"
#include "wide_rows.cuh"

// Data of the streams for which this block chooses codes: every BLOCKS-th.
struct WidePlace {
  __device__ static SamplerScratch& scratch() { return *reinterpret_cast<SamplerScratch*>(wide_shared().arena); }
  __device__ static const Row& row(int index) { return wide_shared().own_row[index / BLOCKS]; }
  __device__ static const Sampling& sampling(int index) { return wide_shared().own_sampling[index / BLOCKS]; }
};

// Reads the rows of these streams once for all passes of a launch.
__device__ inline void read_own_rows() {
  WideShared& s = wide_shared();
#pragma unroll 1
  for (int index = blockIdx.x; index < s.launch.rows; index += BLOCKS) {
    const Row& row = s.wide.row[index];
    copy_words<CONSUMERS>(&s.own_row[index / BLOCKS], &row, sizeof(Row));
    copy_words<CONSUMERS>(&s.own_sampling[index / BLOCKS], &s.to.stream[row.slot].sampling, sizeof(Sampling));
  }
  consumer_sync();
}

// Code `codebook` of a row; all threads of the block.
__device__ inline int pick_wide(int index, int codebook) {
  WideShared& s = wide_shared();
  const Row& row = WidePlace::row(index);
  const int code = row.forced ? row.codes[codebook] : choose_code<WidePlace>(index, codebook);
  if (threadIdx.x == 0) s.wide.picked[index * GROUPS + codebook] = code;
  consumer_sync();
  return code;
}

// The frame is complete: the host learns it, and the stream remembers its first code.
__device__ inline void publish_wide(int index) {
  const WideShared& s = wide_shared();
  if (threadIdx.x != 0) return;
  const int *picked = s.wide.picked + index * GROUPS, first = picked[0];
#pragma unroll 1
  for (int i = 0; i < GROUPS; ++i) s.to.codes[index * (GROUPS + 1) + i] = picked[i];
  __threadfence_system();
  *const_cast<volatile int*>(s.to.codes + index * (GROUPS + 1) + GROUPS) = s.to.ticket;
  s.to.stream[s.wide.row[index].slot].seen[first / 32] |= 1u << (first % 32);
}

__device__ inline float4 input_of(int index, int code, int column) {
  const WideShared& s = wide_shared();
  if (!s.pass.talker) return widen_four(s.to.input_tables[s.pass.number - 1] + u64(code) * Predictor::HIDDEN + column);
  float4 sum{};
  if (s.launch.mode == DECODE) {
#pragma unroll 8
    for (int i = 0; i < GROUPS; ++i) {
      sum = sum + widen_four(s.to.sum_tables[i] + u64(s.wide.picked[index * GROUPS + i]) * Talker::HIDDEN + column);
    }
  }
  const float4 text = __ldcg(reinterpret_cast<const float4*>(s.to.text + u64(index) * Talker::HIDDEN + column));
  return s.launch.mode == DECODE ? sum + text : text;
}

// Calls `enter` with all columns of a row, four at a time, and whether they are there: whole warps come along.
template <class Enter>
__device__ inline void each_column(int columns, Enter enter) {
#pragma unroll 1
  for (int column = threadIdx.x * 4; column - threadIdx.x % 32 * 4 < columns; column += CONSUMERS * 4) enter(column, column < columns);
}

// Four columns of a row begin.
__device__ inline void begin_columns(bool there, int row, int column, float4 x) {
  const WideShared& s = wide_shared();
  if (there) four(s.to.x + u64(row) * s.pass.sizes.hidden + column) = x;
  put_operand(there, row, column, x, s.pass.norms);
}

// The first position of a stream: the talker's hidden state, or what a projection will make of it.
__device__ inline void begin_first(int index) {
  const WideShared& s = wide_shared();
  const float* hidden = s.to.hidden + u64(WidePlace::row(index).slot) * Talker::HIDDEN;
  each_column(Talker::HIDDEN, [&](int column, bool there) {
    const float4 x = there ? __ldcg(reinterpret_cast<const float4*>(hidden + column)) : float4{};
    if constexpr (PROJECTS) {
      const float4 y = without_tags(x);
      if (there) put_columns(s.to.attention, index, column, {pack(y.x, y.y), pack(y.z, y.w)});
    } else {
      begin_columns(there, 2 * index, column, x);
    }
  });
}

// Streams, or rows of prompts, go to blocks one by one, always the same.
__device__ __noinline__ void begin_rows() {
  const WideShared& s = wide_shared();
  const bool pairs = s.pass.kind == OF_PAIRS;
#pragma unroll 1
  for (int index = blockIdx.x; index < s.launch.rows; index += BLOCKS) {
    if (pairs) begin_first(index);
    const int code = s.launch.mode == DECODE ? pick_wide(index, s.pass.number - 1) : 0;
    if (s.launch.mode == DECODE && s.pass.talker) publish_wide(index);
    each_column(s.pass.sizes.hidden, [&](int column, bool there) {
      begin_columns(there, pairs ? 2 * index + 1 : index, column, there ? input_of(index, code, column) : float4{});
    });
  }
}

// The streams' new hidden states.
__device__ __noinline__ void store_hidden() {
  const WideShared& s = wide_shared();
  constexpr int H = Talker::HIDDEN;
  const float* norm = s.to.talker_norms + Talker::LAYERS * Talker::NORMS;
#pragma unroll 1
  for (int place = blockIdx.x; place < s.wide.heards; place += BLOCKS) {
    const int row = s.wide.source[place];
    const float factor = norm_factor(place);
#pragma unroll 1
    for (int column = threadIdx.x * 4; column < H; column += CONSUMERS * 4) {
      const float4 value = __ldcg(reinterpret_cast<const float4*>(s.to.x + u64(row) * H + column)) * factor;
      four(s.to.hidden + u64(s.wide.row[row].slot) * H + column) = value * __ldg(reinterpret_cast<const float4*>(norm + column));
    }
  }
}

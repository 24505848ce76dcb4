// What a pass of many rows begins with: the codes chosen before it, and the rows' part of the residual stream.
#pragma once
#include "sampler.cuh"
#include "wide_rows.cuh"

// Code `codebook` of a row; all threads of the block.
__device__ inline int pick_wide(int index, int codebook) {
  WideShared& s = wide_shared();
  const Row& row = s.wide.row[index];
  const int code = row.forced ? row.codes[codebook]
                              : choose_code(*reinterpret_cast<SamplerScratch*>(s.arena), row, index, s.to.sampling[row.slot], codebook);
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
  s.to.seen[s.wide.row[index].slot * (Talker::VOCAB / 32) + first / 32] |= 1u << (first % 32);
}

__device__ inline float4 input_of(int index, int code, int column) {
  const WideShared& s = wide_shared();
  const int pass = s.pass.number;
  const auto read = [](const float* source) { return __ldcg(reinterpret_cast<const float4*>(source)); };
  if (pass == 0) return read(s.to.hidden + u64(s.wide.row[index].slot) * Talker::HIDDEN + column);
  if (pass != TALKER_PASS) return widen_four(s.to.input_tables[pass - 1] + u64(code) * Predictor::HIDDEN + column);
  float4 sum{};
  if (s.launch.mode == DECODE) {
#pragma unroll 8
    for (int i = 0; i < GROUPS; ++i) {
      sum = sum + widen_four(s.to.sum_tables[i] + u64(s.wide.picked[index * GROUPS + i]) * Talker::HIDDEN + column);
    }
  }
  const float4 text = read(s.to.text + u64(index) * Talker::HIDDEN + column);
  return s.launch.mode == DECODE ? sum + text : text;
}

// Rows go to blocks one by one, always the same.
__device__ __noinline__ void begin_rows(int rows) {
  const WideShared& s = wide_shared();
  const int pass = s.pass.number;
  const bool projected = PROJECTS && pass == 0;  // the residual stream follows from the projection
  const int columns = projected ? Talker::HIDDEN : s.pass.sizes.hidden;
#pragma unroll 1
  for (int index = blockIdx.x; index < rows; index += BLOCKS) {
    int code = 0;
    if (s.launch.mode == DECODE && pass > 0) code = pick_wide(index, pass - 1);
    if (s.launch.mode == DECODE && pass == TALKER_PASS) publish_wide(index);
#pragma unroll 1
    for (int column = threadIdx.x * 4; column - threadIdx.x % 32 * 4 < columns; column += CONSUMERS * 4) {
      const bool there = column < columns;
      const float4 x = there ? input_of(index, code, column) : float4{};
      if (projected) {
        const float4 y = without_tags(x);
        if (there) put_columns(s.to.attention, index, column, {pack(y.x, y.y), pack(y.z, y.w)});
        continue;
      }
      if (there) four(s.to.x + u64(index) * columns + column) = x;
      put_operand(there, index, column, x, s.pass.norms);
    }
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

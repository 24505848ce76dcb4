// Activations on their way into shared memory, as operand A of mma.m16n8k16. Each warp brings the column blocks that it
// multiplies, warp, warp + WARPS, ..., so that no other warp has to wait for it.
#pragma once
#include "copy.cuh"
#include "number.cuh"
#include "shared.cuh"

// The piece of eight columns that a lane brings of each of its column blocks: four lanes a row, and where rows are few,
// several blocks at once.
struct Portion {
  int row, quarter, first, step;  // `first` and `step` count the warp's column blocks
  bool live;

  __device__ Portion() {
    const Pass& p = shared().pass;
    const int place = (threadIdx.x & 31) >> 2;
    row = place & ((1 << p.shift) - 1);
    quarter = threadIdx.x & 3;
    first = place >> p.shift;
    step = 8 >> p.shift;
    live = row < p.rows;
  }
  __device__ static int block(int i) { return i * WARPS + int(threadIdx.x >> 5); }
  __device__ int column(int i) const { return block(i) * KBLOCK + quarter * 8; }
};

__device__ inline uint4* operand_piece(int block, int place) {
  return &shared().product.operand[(block << (shared().pass.shift + 2)) + place];
}

// bfloat16 values [rows][stride], columns [begin, begin + size).
__device__ inline void bring(const u16* values, int stride, int begin, int size) {
  const Portion mine;
  const u16* row = values + mine.row * stride + begin;
#pragma unroll 1
  for (int i = mine.first; mine.live && Portion::block(i) * KBLOCK < size; i += mine.step) {
    copy_piece(operand_piece(Portion::block(i), mine.row * 4 + mine.quarter), row + mine.column(i));
  }
  await_pieces();
  __syncwarp();
}

// The norm weights of the columns that this warp will bring: constants, which need not wait for other blocks.
__device__ inline void prefetch_norm(const float* weight, int size) {
#pragma unroll 1
  for (int i = threadIdx.x & 31; Portion::block(i / 8) * KBLOCK < size; i += 32) {
    const int column = Portion::block(i / 8) * KBLOCK + i % 8 * 4;
    copy_piece(&shared().norm[column], weight + column);
  }
}

// RMSNorm without its row factor, which the epilogue multiplies in: value * weight. The warp's share of each row's sum
// of squares goes to `squares`; the first columns start it, later ones add to it.
__device__ inline void bring_normed(int begin, int size, bool count_squares) {
  constexpr int AT_ONCE = 4;
  Shared& s = shared();
  const Portion mine;
  const Source source = s.source[mine.live ? mine.row : 0];
  float sum = 0;
#pragma unroll 1
  for (int base = 0; Portion::block(base) * KBLOCK < size; base += AT_ONCE * mine.step) {
    const int i = base + mine.first;
    Eight x[AT_ONCE];
    const auto inside = [&](int j) { return mine.live && Portion::block(i + j * mine.step) * KBLOCK < size; };
    if (source.values) {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (inside(j)) x[j] = load_eight(source.values + begin + mine.column(i + j * mine.step));
      }
    } else {
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (inside(j)) x[j] = load_eight(source.table + begin + mine.column(i + j * mine.step));
      }
    }
    await_pieces();  // the norm weights
    __syncwarp();
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (!inside(j)) continue;
      const int at = i + j * mine.step;
      const float4 a = *reinterpret_cast<const float4*>(&s.norm[begin + mine.column(at)]);
      const float4 b = *reinterpret_cast<const float4*>(&s.norm[begin + mine.column(at) + 4]);
      const float* v = x[j].v;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum = fmaf(v[e], v[e], sum);
      *operand_piece(Portion::block(at), mine.row * 4 + mine.quarter) =
          uint4{pack(v[0] * a.x, v[1] * a.y), pack(v[2] * a.z, v[3] * a.w), pack(v[4] * b.x, v[5] * b.y),
                pack(v[6] * b.z, v[7] * b.w)};
    }
  }
  const int lane = threadIdx.x & 31, places = 4 << s.pass.shift;
#pragma unroll 1
  for (int step = 1; step < 32; step *= 2) {
    if (step < 4 || step >= places) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  if (count_squares && lane < places && mine.quarter == 0) {
    float& share = s.squares[threadIdx.x >> 5][mine.row];
    share = begin == 0 ? sum : share + sum;
  }
  __syncwarp();
}

// 1 / rms of a row from the warps' shares.
__device__ inline float norm_factor(int row) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) sum += shared().squares[warp][row];
  return rsqrtf(sum * shared().pass.mean + shared().pass.eps);
}

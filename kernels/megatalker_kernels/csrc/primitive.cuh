// What the hardware does, beside what CUDA has functions for. Together with copy.cuh this is all that stands between the kernel and
// another machine: tests replace both and run the rest on a CPU.
#pragma once
#include "config.cuh"

// The block's dynamic shared memory; opaque, so that addresses in it are computed where they are used and take no registers
// elsewhere.
__device__ inline void* block_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  u32 address = u32(__cvta_generic_to_shared(memory));
  asm("" : "+r"(address));
  return __cvta_shared_to_generic(address);
}

// The same for the number of a thread.
__device__ inline int own_thread() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

// Of a wait's polls: whether it is time to look up.
__device__ inline bool now_and_then(u32& polls) { return (++polls & 1023u) == 0; }

__device__ inline void consumer_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Two bfloat16, rounded to nearest even; `first` goes to the low half.
__device__ inline u32 pack(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// c += a * b; lane 4 * n + q holds columns 2q, 2q + 1 and 2q + 8, 2q + 9 of a's rows n (a0, a2) and n + 8 (a1, a3) and of
// b's row n (b0, b1), and columns 2q, 2q + 1 of c's rows n (c0, c1) and n + 8 (c2, c3).
__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes as a whole: PTX promises that of `.b128`; it is the same instruction as `.v4.b32`, which needs fewer registers.
__device__ inline void store_quad(float* place, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// The same if they are wanted, without a branch, so that several are on their way at once.
__device__ inline void load_quad(bool wanted, const float* place, u32 (&word)[4]) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])
      : "l"(place), "r"(u32(wanted)) : "memory");
}

__device__ inline void add_release(u32* word, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline u32 load_acquire(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// What the word was.
__device__ inline u32 add_acquire_release(u32* word, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

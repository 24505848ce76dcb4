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

// Four matrices of eight rows of 16 bytes in shared memory, in the order of their numbers: lane 8 * m + n says where row n of matrix
// m lies. Lane 4 * n + q gets word q of row n of each.
__device__ inline uint4 load_matrices(const uint4* row) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(u32(__cvta_generic_to_shared(row))));
  return words;
}

__device__ inline void begin_warpgroup_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_warpgroup_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ inline void await_warpgroup_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// From here on, and not before, the compiler may look at what a product that was awaited has left here.
__device__ inline void has_changed(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// An operand of a warpgroup: fragments (see packing.py) from the first one's first or third matrix on; those of the next eight rows
// lie `apart`, in vectors.
struct Fragments {
  u32 low, high;  // of what the hardware calls the descriptor of a matrix

  __device__ Fragments(const uint4* first, int apart) : low(u32(__cvta_generic_to_shared(first)) >> 4 | 8u << 16), high(apart) {}

  __device__ Fragments operator+(int vectors) const {
    Fragments further = *this;
    further.low += vectors;
    return further;
  }
};

// c = a * b, or c += a * b, of four warps (sm_90a): 64 rows, sixteen of which are each warp's, and tiles of weights, by the sixteen
// columns of two matrices of a fragment. The numbers of `c` lie as those of mma, tile by tile, and their bits are the same.
template <int TILES>
__device__ inline void multiply_warpgroup(float (&c)[TILES][4], Fragments a, Fragments b, bool add) {
#define FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define NUMBERS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NUMBERS_12 NUMBERS_8 ",%8,%9,%10,%11"
#define NUMBERS_16 NUMBERS_12 ",%12,%13,%14,%15"
#define NUMBERS_24 NUMBERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NUMBERS_32 NUMBERS_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NUMBERS_48 NUMBERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA(COLUMNS, NUMBERS, A, A_, B, B_, ADD)                                                         \
  "{ .reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %" #ADD ", 0;"                                       \
  "mov.b64 a, {%" #A ", %" #A_ "}; mov.b64 b, {%" #B ", %" #B_ "};"                                        \
  "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" NUMBERS "}, a, b, add, 1, 1, 0, 0; }"
#define OPERANDS "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(u32(add))
  static_assert(TILES == 2 || TILES == 3 || TILES == 4 || TILES == 6 || TILES == 8 || TILES == 12);
  if constexpr (TILES == 2) {
    asm volatile(WGMMA(16, NUMBERS_8, 8, 9, 10, 11, 12) : FOUR(0), FOUR(1) : OPERANDS);
  } else if constexpr (TILES == 3) {
    asm volatile(WGMMA(24, NUMBERS_12, 12, 13, 14, 15, 16) : FOUR(0), FOUR(1), FOUR(2) : OPERANDS);
  } else if constexpr (TILES == 4) {
    asm volatile(WGMMA(32, NUMBERS_16, 16, 17, 18, 19, 20) : FOUR(0), FOUR(1), FOUR(2), FOUR(3) : OPERANDS);
  } else if constexpr (TILES == 6) {
    asm volatile(WGMMA(48, NUMBERS_24, 24, 25, 26, 27, 28)
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5)
                 : OPERANDS);
  } else if constexpr (TILES == 8) {
    asm volatile(WGMMA(64, NUMBERS_32, 32, 33, 34, 35, 36)
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
                 : OPERANDS);
  } else {
    asm volatile(WGMMA(96, NUMBERS_48, 48, 49, 50, 51, 52)
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7), FOUR(8),
                   FOUR(9), FOUR(10), FOUR(11)
                 : OPERANDS);
  }
#undef FOUR
#undef NUMBERS_8
#undef NUMBERS_12
#undef NUMBERS_16
#undef NUMBERS_24
#undef NUMBERS_32
#undef NUMBERS_48
#undef WGMMA
#undef OPERANDS
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

// Instructions of the GPU that CUDA has no functions for. The kernels of the talker and of the codec share this file and copy.cuh;
// all else is plain C++: tests replace both files and run the kernels on a CPU.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// The block's dynamic shared memory; opaque, so that addresses in it are computed where they are used and take no registers
// elsewhere.
__device__ inline void* block_memory() {
  extern __shared__ __align__(128) unsigned char dynamic_memory[];
  u32 address = shared_address(dynamic_memory);
  asm("" : "+r"(address));
  return __cvta_shared_to_generic(address);
}

// The number of this thread; opaque for the same reason.
__device__ inline int own_thread() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

// Whether a wait that polls should look up: once in 1024 polls.
__device__ inline bool now_and_then(u32& polls) { return (++polls & 1023u) == 0; }

// Wait until `COUNT` threads of the block have come.
template <int COUNT>
__device__ inline void sync_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(COUNT) : "memory");
}

// Allow the next kernel of a chain to start while this one still runs. It must wait before it reads what this one writes.
__device__ inline void admit_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Wait until all earlier kernels of the chain have ended, and what they wrote is visible.
__device__ inline void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Two bfloat16, rounded to nearest even; `first` goes to the low half.
__device__ inline u32 pack(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// Two float16, rounded to nearest even; `first` goes to the low half.
__device__ inline u32 to_f16(float first, float second) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
  return word;
}

__device__ inline float2 from_f16(u32 word) {
  float2 pair;
  asm("{.reg .f16 first, second; mov.b32 {first, second}, %2; cvt.f32.f16 %0, first; cvt.f32.f16 %1, second;}"
      : "=f"(pair.x), "=f"(pair.y)
      : "r"(word));
  return pair;
}

// c += a * b in bfloat16; lane 4 * n + q holds columns 2q, 2q + 1 and 2q + 8, 2q + 9 of a's rows n (a0, a2) and n + 8 (a1, a3) and of
// b's row n (b0, b1), and columns 2q, 2q + 1 of c's rows n (c0, c1) and n + 8 (c2, c3).
__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c += a * b in TensorFloat-32; lane 4 * n + q holds columns q, q + 4 of a's rows n (a0, a2) and n + 8 (a1, a3) and of b's row n (b0, b1),
// and columns 2q, 2q + 1 of c's rows n (c0, c1) and n + 8 (c2, c3).
__device__ inline void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c += a * b in float16; lane 4 * n + q holds columns 2q, 2q + 1 (a0, a1, b0) and 2q + 8, 2q + 9 (a2, a3, b1) of a's rows n (a0, a2) and
// n + 8 (a1, a3) and of b's row n, and of c the same places as in mma_tf32.
__device__ inline void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four matrices of eight rows of 16 bytes in shared memory, in the order of their numbers: lane 8 * m + n says where row n of matrix
// m lies. Lane 4 * n + q gets word q of row n of each.
__device__ inline uint4 load_matrices(const uint4* row) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared_address(row)));
  return words;
}

__device__ inline void begin_warpgroup_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_warpgroup_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ inline void await_warpgroup_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Tell the compiler that a product which has been awaited has changed this value: it may be read from here on, and not before.
__device__ inline void has_changed(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// Make what this thread has copied into shared memory visible to tensor cores and bulk copies, once all threads have come by a barrier.
__device__ inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// An operand of a warpgroup in shared memory: matrices of eight rows of 16 bytes each. The matrix of the next eight columns lies `across`
// vectors of 16 bytes from the one before, that of the next eight rows `down` vectors.
struct MatrixDescriptor {
  u32 low, high;

  __device__ MatrixDescriptor(const void* first, int across, int down) : low(shared_address(first) >> 4 | across << 16), high(down) {}

  __device__ MatrixDescriptor operator+(int vectors) const {
    MatrixDescriptor further = *this;
    further.low += vectors;
    return further;
  }
};

#define FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define NUMBERS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NUMBERS_12 NUMBERS_8 ",%8,%9,%10,%11"
#define NUMBERS_16 NUMBERS_12 ",%12,%13,%14,%15"
#define NUMBERS_24 NUMBERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NUMBERS_32 NUMBERS_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NUMBERS_48 NUMBERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA(TYPE, COLUMNS, NUMBERS, A, A_, B, B_, ADD)                                                            \
  "{ .reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %" #ADD ", 0;"                                                \
  "mov.b64 a, {%" #A ", %" #A_ "}; mov.b64 b, {%" #B ", %" #B_ "};"                                                 \
  "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NUMBERS "}, a, b, add, 1, 1, 0, 0; }"
#define OPERANDS "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(u32(add))
#define FORTY_EIGHT \
  FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7), FOUR(8), FOUR(9), FOUR(10), FOUR(11)

// c = a * b, or c += a * b, in bfloat16, by four warps (sm_90a): 64 rows, of which each warp has sixteen, and tiles of eight rows of b,
// by sixteen columns. The numbers of `c` lie as those of mma, tile by tile, and their bits are the same.
template <int TILES>
__device__ inline void multiply_warpgroup(float (&c)[TILES][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  static_assert(TILES == 2 || TILES == 3 || TILES == 4 || TILES == 6 || TILES == 8 || TILES == 12);
  if constexpr (TILES == 2) {
    asm volatile(WGMMA("bf16", 16, NUMBERS_8, 8, 9, 10, 11, 12) : FOUR(0), FOUR(1) : OPERANDS);
  } else if constexpr (TILES == 3) {
    asm volatile(WGMMA("bf16", 24, NUMBERS_12, 12, 13, 14, 15, 16) : FOUR(0), FOUR(1), FOUR(2) : OPERANDS);
  } else if constexpr (TILES == 4) {
    asm volatile(WGMMA("bf16", 32, NUMBERS_16, 16, 17, 18, 19, 20) : FOUR(0), FOUR(1), FOUR(2), FOUR(3) : OPERANDS);
  } else if constexpr (TILES == 6) {
    asm volatile(WGMMA("bf16", 48, NUMBERS_24, 24, 25, 26, 27, 28)
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5)
                 : OPERANDS);
  } else if constexpr (TILES == 8) {
    asm volatile(WGMMA("bf16", 64, NUMBERS_32, 32, 33, 34, 35, 36)
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
                 : OPERANDS);
  } else {
    asm volatile(WGMMA("bf16", 96, NUMBERS_48, 48, 49, 50, 51, 52)
                 : FORTY_EIGHT : OPERANDS);
  }
}

// The product of a warpgroup in float16.
__device__ inline void multiply_warpgroup_f16(float (&c)[12][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  asm volatile(WGMMA("f16", 96, NUMBERS_48, 48, 49, 50, 51, 52) : FORTY_EIGHT : OPERANDS);
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
#undef FORTY_EIGHT

// 16 bytes as a whole: PTX promises that of `.b128`; it is the same instruction as `.v4.b32`, which needs fewer registers.
__device__ inline void store_quad(float* place, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Loads four words if they are wanted, without a branch, so that several loads are in flight at once.
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

// Adds to the word, and returns its value before.
__device__ inline u32 add_acquire_release(u32* word, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

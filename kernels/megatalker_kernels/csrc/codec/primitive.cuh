// What the hardware does: copies into shared memory that nobody waits for, and products on tensor cores.
#pragma once

using u32 = unsigned int;
using i64 = long long;

// Of a chain of kernels each may start while its predecessor still runs, as far as it needs nothing of it.
__device__ inline void admit_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// All predecessors have ended, and what they wrote is visible.
__device__ inline void await_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes; zeros where they are not `wanted`.
__device__ inline void copy_async_16(void* target, const void* source, bool wanted) {
  const u32 address = u32(__cvta_generic_to_shared(target));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(wanted ? 16 : 0)
               : "memory");
}

// The same, for what other blocks of the processor may soon read as well.
__device__ inline void copy_async_shared_16(void* target, const void* source, bool wanted) {
  const u32 address = u32(__cvta_generic_to_shared(target));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(wanted ? 16 : 0)
               : "memory");
}

__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the `LATEST` groups of this thread's copies have landed.
template <int LATEST>
__device__ inline void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}

// c += a * b in TensorFloat-32; lane 4 * n + q holds columns q, q + 4 of a's rows n (a0, a2) and n + 8 (a1, a3) and of b's row n (b0, b1),
// and columns 2q, 2q + 1 of c's rows n (c0, c1) and n + 8 (c2, c3).
__device__ inline void mma_tf32(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c += a * b in float16; lane 4 * n + q holds columns 2q, 2q + 1 (a0, a1, b0) and 2q + 8, 2q + 9 (a2, a3, b1) of a's rows n (a0, a2) and
// n + 8 (a1, a3) and of b's row n, and of c what it holds above.
__device__ inline void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two numbers rounded to float16, the first in the lower half of the word.
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

// Into the cache that all processors share.
__device__ inline void prefetch(const void* source, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Copies in one piece that one thread makes and all await, in shared memory.
struct Arrival {
  unsigned long long barrier;

  __device__ void begin() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.proxy.async.shared::cta;" ::"r"(address(this)) : "memory");
  }

  __device__ void copy(void* target, const void* source, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(this)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(target)),
                 "l"(source), "r"(bytes), "r"(address(this))
                 : "memory");
  }

  // Until the copies with that parity have come: the first has 0, the next 1, the one after it 0.
  __device__ void await(int parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(address(this)),
        "r"(parity)
        : "memory");
  }

  __device__ static u32 address(const void* place) { return u32(__cvta_generic_to_shared(place)); }
};

// Of a product by a warpgroup: rows of sixteen-byte vectors in shared memory, neighbouring rows side by side.
struct Operand {
  unsigned long long descriptor;

  // `first`: the vector of the first row and first eight columns; `panel` vectors from there to the next eight columns.
  __device__ Operand(const float4* first, int panel) {
    const u32 address = u32(__cvta_generic_to_shared(first));
    descriptor = address >> 4 | (unsigned long long)panel << 16 | 8ull << 32;
  }
};

// What this thread has copied into shared memory is there for operands, once all threads have come by a barrier.
__device__ inline void admit_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void begin_warpgroup_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_warpgroup_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ inline void await_warpgroup_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// From here on, and not before, the compiler may look at what a product that was awaited has left here.
__device__ inline void has_changed(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// c = x * w, or c += it, in float16, of 64 rows and 96 weight rows of sixteen columns. Lane 4 * n + q of warp w holds columns
// 8j + 2q, 8j + 2q + 1 of rows 16w + n (c[4j], c[4j + 1]) and 16w + n + 8 (c[4j + 2], c[4j + 3]).
__device__ inline void multiply_warpgroup(float (&c)[48], Operand x, Operand w, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, %48, %49, add, 1, 1, 0, 0;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
        "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
        "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
        "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
        "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
        "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
      : "l"(x.descriptor), "l"(w.descriptor), "r"(int(add)));
}

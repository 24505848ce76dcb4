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

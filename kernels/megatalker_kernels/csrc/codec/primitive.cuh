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
__device__ inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

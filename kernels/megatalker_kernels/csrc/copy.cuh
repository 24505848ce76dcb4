// Asynchronous copies into shared memory, and the barriers that tell when they have landed.
#pragma once
#include "primitive.cuh"

__device__ inline void mbarrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ inline void mbarrier_arrive(u64* barrier) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline bool mbarrier_done(u64* barrier, u32 parity) {
  u32 done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
#else
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
#endif
  return done != 0;
}

// Wait until the copies that this barrier counts have landed; copies always do. The first ones have parity 0, the next 1, then 0.
__device__ inline void wait_for(u64* barrier, u32 parity) {
  while (!mbarrier_done(barrier, parity)) {
  }
}

// Barriers just made are there for copies, too.
__device__ inline void fence_mbarrier_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// 16 bytes, through the L2 cache only: the copy sees other blocks' writes.
__device__ inline void copy_async_16(u32 target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ inline void copy_async_16(void* target, const void* source) { copy_async_16(shared_address(target), source); }

// 16 bytes; zeros where they are not `wanted`.
__device__ inline void copy_async_16(void* target, const void* source, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(wanted ? 16 : 0)
               : "memory");
}

// Copies through the L1 cache, for bytes that other blocks of the multiprocessor may soon read as well.
__device__ inline void copy_async_cached_16(void* target, const void* source, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(wanted ? 16 : 0)
               : "memory");
}

// This thread's copies since the last call are a group.
__device__ inline void commit_async_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All of this thread's groups have landed but the last ones.
template <int GROUPS_>
__device__ inline void await_async_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_) : "memory");
}

// This thread's copies have landed.
__device__ inline void await_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Bring the line with these bytes into the L2 cache.
__device__ inline void prefetch_line(const void* source) { asm volatile("prefetch.global.L2 [%0];" ::"l"(source)); }

// Bring bytes into the L2 cache (sm_90).
__device__ inline void prefetch(const void* source, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Arrive, and let the barrier wait for this many bytes of bulk copies (sm_90).
__device__ inline void expect_bytes(u64* barrier, int bytes) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(shared_address(barrier)),
               "r"(bytes) : "memory");
}

__device__ inline void copy_bulk(void* target, const void* source, int bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}

__device__ inline void copy_bulk(void* target, const void* source, int bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

#if __CUDA_ARCH__ >= 900
// Make bulk copies evict what they read first: weights are read once a launch, and other data in the L2 cache is read again.
__device__ inline u64 streaming_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Orders earlier reads and writes that this thread knows of before the bulk copies that it makes.
__device__ inline void admit_to_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  fence_async_shared();
}
#else
__device__ inline void admit_to_copies() {}
__device__ inline u64 streaming_policy() { return 0; }

__device__ inline void copy_then_arrive(u64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif

// The memory pipeline: a ring in shared memory, which one warp fills in the order of use.
#pragma once
#include "copy.cuh"
#include "shared.cuh"
#include "status.cuh"

__device__ inline void ring_init() {
  Shared& s = shared();
  for (int i = 0; i < STAGES; ++i) {
#if __CUDA_ARCH__ >= 900
    mbarrier_init(&s.full[i], 1);
#else
    mbarrier_init(&s.full[i], 32);
#endif
    mbarrier_init(&s.empty[i], WARPS);
  }
  fence_mbarrier_init();
}

// After an abort it ends with whatever lies in the ring.
__device__ inline void wait_longer(PipelineState state) {
  SpinGuard guard;
  while (!mbarrier_done(&shared().full[state.stage], state.parity) && guard.keep_spinning(Wait::RING)) {
  }
  __syncwarp();
}

// Consumer side: every consumer warp visits every stage.
__device__ inline const uint4* wait_for_stage(PipelineState state) {
  Shared& s = shared();
  if (!__all_sync(0xffffffffu, mbarrier_done(&s.full[state.stage], state.parity))) wait_longer(state);
  return s.ring[state.stage];
}

__device__ inline void release_stage(PipelineState& state) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) mbarrier_arrive(&shared().empty[state.stage]);
  state.advance();
}

// Bytes in a row.
struct Span {
  const void* start = nullptr;
  int size = 0;
};

// Producer side: one warp. The order of its calls must equal the order in which the consumers read.
struct Producer {
  u64 policy = streaming_policy();
  PipelineState next, landed;
  int pending = 0;
  bool first_lap = true;
  bool alive = true;

  __device__ bool wait_for(u64* barrier, u32 parity) {
    SpinGuard guard;
    const volatile int* quit = &shared().quit;
    while (alive && !mbarrier_done(barrier, parity)) alive = !*quit && guard.keep_following();
    alive = __all_sync(0xffffffffu, alive);
    return alive;
  }

  // One stage.
  __device__ void fill(Span first, Span second = {}) {
    Shared& s = shared();
    if (!alive) return;
    if (pending == IN_FLIGHT && !await_landed()) return;
    if (!first_lap && !wait_for(&s.empty[next.stage], next.parity ^ 1)) return;
    const int lane = threadIdx.x & 31;
    char* target = reinterpret_cast<char*>(s.ring[next.stage]);
    u64* full = &s.full[next.stage];
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      expect_bytes(full, first.size + second.size);
      copy_bulk(target, first.start, first.size, full, policy);
      if (second.size) copy_bulk(target + first.size, second.start, second.size, full, policy);
    }
#else
    const auto copy = [&](char* to, Span span) {
      for (int i = lane * 16; i < span.size; i += 512) copy_async_16(to + i, static_cast<const char*>(span.start) + i);
    };
    copy(target, first), copy(target + first.size, second);
    copy_then_arrive(full);
#endif
    ++pending;
    next.advance();
    if (next.stage == 0) first_lap = false;
  }

  // False: left without waiting to the end; the copy is still pending then.
  __device__ bool await_landed() {
    if (!wait_for(&shared().full[landed.stage], landed.parity)) return false;
    landed.advance();
    --pending;
    return true;
  }

  // No copy may be in flight when the block's shared memory goes away.
  __device__ void drain() {
    while (pending > 0) {
      while (!mbarrier_done(&shared().full[landed.stage], landed.parity)) {
      }
      landed.advance();
      --pending;
    }
  }
};

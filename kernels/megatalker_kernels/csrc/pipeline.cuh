// The memory pipeline: one warp fetches the block's weights, in the order of use, into a ring in shared memory.
#pragma once
#include "status.cuh"

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

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

struct Ring {
  uint4 data[STAGES][STAGE_BYTES / 16];
  u64 full[STAGES];
  u64 empty[STAGES];

  __device__ void init() {
    for (int i = 0; i < STAGES; ++i) {
#if __CUDA_ARCH__ >= 900
      mbarrier_init(&full[i], 1);
#else
      mbarrier_init(&full[i], 32);
#endif
      mbarrier_init(&empty[i], WARPS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
};

// Where a walk round the ring stands.
struct Cursor {
  int stage = 0;
  u32 parity = 0;

  __device__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Consumer side: every consumer warp visits every stage.
struct Reader {
  Ring& ring;
  const Status& status;
  const int& phase;
  Cursor at;
  bool alive = true;

  __device__ const uint4* wait() {
    if (!__all_sync(0xffffffffu, mbarrier_done(&ring.full[at.stage], at.parity))) wait_longer();
    return ring.data[at.stage];
  }

  __device__ __noinline__ void wait_longer() {
    Patience patience(status);
    while (alive && !mbarrier_done(&ring.full[at.stage], at.parity)) alive = patience.keep_waiting(WAIT_WEIGHTS, phase);
    alive = __all_sync(0xffffffffu, alive);
  }

  __device__ void release() {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(&ring.empty[at.stage]);
    at.advance();
  }
};

// Producer side: one warp. The order of its calls must equal the order in which the consumers read.
struct Writer {
  Ring& ring;
  const Status& status;
  const char* weights;  // this block's packed stream
  const volatile int* quit;  // the consumers left
  Cursor at, landed;
  int pending = 0;
  bool first_lap = true;
  bool alive = true;

  __device__ bool wait_for(u64* barrier, u32 parity) {
    Patience patience(status);
    while (alive && !mbarrier_done(barrier, parity)) alive = !*quit && patience.follow();
    alive = __all_sync(0xffffffffu, alive);
    return alive;
  }

  __device__ void put(u64 offset, int bytes) {
    if (!alive) return;
    if (pending == IN_FLIGHT && !land()) return;
    if (!first_lap && !wait_for(&ring.empty[at.stage], at.parity ^ 1)) return;
    const int lane = threadIdx.x & 31;
    u64* full = &ring.full[at.stage];
    const char* source = weights + offset;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(shared_address(full)),
                   "r"(bytes) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(ring.data[at.stage])),
                   "l"(source), "r"(bytes), "r"(shared_address(full)) : "memory");
    }
#else
    const u32 target = shared_address(ring.data[at.stage]);
    for (int i = lane * 16; i < bytes; i += 512) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + i), "l"(source + i) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
    ++pending;
    at.advance();
    if (at.stage == 0) first_lap = false;
  }

  // False: left without waiting to the end; the copy is still pending then.
  __device__ bool land() {
    if (!wait_for(&ring.full[landed.stage], landed.parity)) return false;
    landed.advance();
    --pending;
    return true;
  }

  // No copy may be in flight when the block's shared memory goes away.
  __device__ void drain() {
    while (pending > 0) {
      while (!mbarrier_done(&ring.full[landed.stage], landed.parity)) {
      }
      landed.advance();
      --pending;
    }
  }
};

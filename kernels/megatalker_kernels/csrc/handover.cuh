// Handing results from phase to phase: a grid barrier in two halves, and the named barrier of a block's consumer warps.
#pragma once
#include "status.cuh"

__device__ inline void consumer_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Clock ticks on arriving at the barrier that ends a phase (0), and on going on (1).
__device__ inline void stamp(int which) {
  const Shared& s = shared();
  if (s.to.profile) s.to.profile[(u64(blockIdx.x) * MAX_PHASES + s.phase) * 2 + which] = clock64();
}

// All consumers: what this block wrote is handed over. `phases` is 0 for a hand-over within a phase.
__device__ __noinline__ void arrive(int phases) {
  Shared& s = shared();
  if (threadIdx.x == 0) s.phase += phases;
  consumer_sync();
  if (threadIdx.x != 0) return;
  s.handed_over = 1;
  if (phases && s.launch.stall_phase == s.phase && s.launch.stall_block == int(blockIdx.x)) {
    while (!aborted()) __nanosleep(1000);
  }
  *const_cast<volatile u32*>(s.to.barrier + PROGRESS + blockIdx.x) = s.phase;
  if (phases) stamp(0);
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(s.to.barrier + ARRIVED) : "memory");
}

// All consumers: every block has arrived (where this one has), and what was handed over can be read with __ldcg. False:
// leave the kernel, because of an abort or because the launch asked to stop here.
__device__ __forceinline__ bool proceed() {
  Shared& s = shared();
  if (threadIdx.x == 0 && s.handed_over) {
    const u32* word = s.to.barrier + ARRIVED;
    const u32 target = s.target;
    Patience patience;
    bool go = true;
    while (go) {
      u32 seen;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
      if (int(seen - target) >= 0) break;
      go = patience.keep_waiting(WAIT_GRID);
    }
    s.target = target + BLOCKS;
    s.handed_over = 0;
    s.go = go && (s.phase == 0 || s.phase != s.launch.stop_after);
    stamp(1);
  }
  consumer_sync();
  return s.go;
}

// The last block to leave makes the words ready for the next launch.
__device__ inline void leave() {
  if (threadIdx.x != 0) return;
  u32* word = shared().to.barrier;
  word[PROGRESS + blockIdx.x] = 0;
  if (atomicAdd(word + LEFT, 1u) == BLOCKS - 1) {
    word[ARRIVED] = 0;
    word[LEFT] = 0;
  }
}

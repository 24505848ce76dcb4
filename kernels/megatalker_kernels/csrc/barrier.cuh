// The grid barrier, in two halves: where all blocks must have seen what plain stores wrote.
#pragma once
#include "publish.cuh"

// The thread that waits; publishing takes the first warp some time, in which the other warps may go on.
constexpr int WAITER = CONSUMERS - 32;

// All consumers: what this block wrote is published.
__device__ __noinline__ void arrive() {
  Common& s = common();
  consumer_sync();
  if (threadIdx.x == WAITER) s.arrived = 1;
  if (threadIdx.x == 0) add_release(s.to.barrier + ARRIVED, 1);
}

// All consumers: every block has arrived (where this one has), and what they wrote can be read with __ldcg. False:
// leave the kernel, because of an abort.
__device__ __forceinline__ bool proceed() {
  Common& s = common();
  if (threadIdx.x == WAITER && s.arrived) {
    const u32* word = s.to.barrier + ARRIVED;
    SpinGuard guard;
    u32 seen;
    do {
      seen = load_acquire(word);
    } while (int(seen - s.target) < 0 && spin_on(guard));
    s.target += BLOCKS;
    s.arrived = 0;
    stamp(1);
  }
  consumer_sync();
  return all_arrived();
}

// Waits for the phase before, and notes the time in the profile.
__device__ inline bool await_phase() {
  if (!proceed()) return false;
  if (own_thread() == 0) stamp(1);
  return true;
}

// The last block to leave makes the words ready for the next launch.
__device__ inline void leave() {
  if (threadIdx.x != 0) return;
  u32* word = common().to.barrier;
  word[PROGRESS + blockIdx.x] = 0;
  if (atomicAdd(word + LEFT, 1u) == BLOCKS - 1) {
    word[ARRIVED] = 0;
    word[LEFT] = 0;
  }
}

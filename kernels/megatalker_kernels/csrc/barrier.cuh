// The grid barrier, in two halves: where all blocks must have seen what plain stores wrote.
#pragma once
#include "handover.cuh"

// All consumers: what this block wrote is handed over.
__device__ __noinline__ void arrive() {
  Shared& s = shared();
  consumer_sync();
  if (threadIdx.x != 0) return;
  s.handed_over = 1;
  add_release(s.to.barrier + ARRIVED, 1);
}

// All consumers: every block has arrived (where this one has), and what was handed over can be read with __ldcg. False:
// leave the kernel, because of an abort.
__device__ __forceinline__ bool proceed() {
  Shared& s = shared();
  if (threadIdx.x == 0 && s.handed_over) {
    const u32* word = s.to.barrier + ARRIVED;
    Patience patience;
    u32 seen;
    do {
      seen = load_acquire(word);
    } while (int(seen - s.target) < 0 && wait_on(patience));
    s.target += BLOCKS;
    s.handed_over = 0;
    stamp(1);
  }
  consumer_sync();
  return all_there();
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

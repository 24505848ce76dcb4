// Handing results from phase to phase: a grid barrier, and the named barrier of a block's consumer warps.
#pragma once
#include "status.cuh"

__device__ inline void consumer_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

struct Grid {
  u32* word;   // see Word
  u32 target;  // arrivals that complete the next barrier
  int phase;
  const Launch& launch;
  const Status& status;
  int* verdict;  // shared: what the polling thread saw

  u64* profile;  // of this block: [phases][2] clock ticks on arriving and on going on, or null

  __device__ void stamp(int which) const {
    if (profile) profile[phase * 2 + which] = clock64();
  }

  // The end of a phase. False: leave the kernel, because of an abort or because the launch asked to stop here.
  __device__ __noinline__ bool sync() {
    ++phase;
    if (launch.stall_phase == phase && launch.stall_block == int(blockIdx.x)) {
      while (!status.aborted()) __nanosleep(1000);
    }
    return join() && phase != launch.stop_after;
  }

  // All consumers of all blocks have come here and see each other's writes (read them with __ldcg). False: abort.
  __device__ __noinline__ bool join() {
    consumer_sync();
    if (threadIdx.x == 0) {
      *const_cast<volatile u32*>(word + PROGRESS + blockIdx.x) = phase;
      stamp(0);
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word + ARRIVED) : "memory");
      Patience patience(status);
      int go = 1;
      while (true) {
        u32 seen;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(word + ARRIVED) : "memory");
        if (int(seen - target) >= 0) break;
        if (!patience.keep_waiting(WAIT_GRID, phase)) {
          go = 0;
          break;
        }
      }
      *verdict = go;
      stamp(1);
    }
    target += BLOCKS;
    consumer_sync();
    return *verdict != 0;
  }

  // The last block to leave makes the words ready for the next launch.
  __device__ void leave() const {
    if (threadIdx.x != 0) return;
    word[PROGRESS + blockIdx.x] = 0;
    if (atomicAdd(word + LEFT, 1u) == BLOCKS - 1) {
      word[ARRIVED] = 0;
      word[LEFT] = 0;
    }
  }
};

// Bounded waiting: nothing in the kernel waits without a clock limit and a look at the abort word.
#pragma once
#include "shared.cuh"

enum Where : int { WAIT_RESULTS = 1, WAIT_RING = 2 };

// The words of the buffer `barrier`.
enum Word : int { ARRIVED = 0, LEFT = 1, ABORTED = 2, REPORTED = 3, PROGRESS = 4 };  // PROGRESS + block: the last phase it finished

__device__ inline bool aborted() { return *const_cast<volatile u32*>(shared().to.barrier + ABORTED) != 0; }

// The first block to lose patience names the place and the block that is furthest behind; everybody leaves.
__device__ inline void report(int where) {
  const Shared& s = shared();
  u32* word = s.to.barrier;
  if (atomicExch(word + REPORTED, 1u) != 0) return;
  int culprit = blockIdx.x, phase = own_walk().phase + 1;
  if (where == WAIT_RESULTS) {
    const volatile u32* progress = word + PROGRESS;
#pragma unroll 1
    for (int block = 0; block < BLOCKS; ++block) {
      if (progress[block] < progress[culprit]) culprit = block;
    }
    phase = progress[culprit] + 1;
  }
  volatile int* host = s.to.status;  // abort, where, phase, block
  host[1] = where;
  host[2] = phase;
  host[3] = culprit;
  __threadfence_system();
  host[0] = 1;
  atomicExch(word + ABORTED, 1u);
}

// Counts polls; looks at the clock and the abort word only now and then.
struct Patience {
  u64 began = 0;
  u32 polls = 0;

  // False when the wait must end.
  __device__ bool keep_waiting(int where) {
    if (!now_and_then(polls)) return true;
    const u64 now = clock64();
    if (began == 0) began = now;
    if (now - began > shared().to.patience) report(where);
    return !aborted();
  }

  // The same for one who waits on behalf of others, and leaves the clock to them.
  __device__ bool follow() { return !now_and_then(polls) || !aborted(); }
};

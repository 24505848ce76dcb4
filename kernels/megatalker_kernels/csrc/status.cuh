// Bounded waiting: nothing in the kernel waits without a clock limit and a look at the abort word.
#pragma once
#include "params.cuh"

enum Where : int { WAIT_GRID = 1, WAIT_WEIGHTS = 2 };

// The words of the buffer `barrier`.
enum Word : int { ARRIVED = 0, LEFT = 1, ABORTED = 2, PROGRESS = 4, CHOSEN = PROGRESS + BLOCKS };
// PROGRESS + block: the last phase it finished. CHOSEN + row: the code that one block chose for all.

struct Status {
  volatile int* host;  // [0] abort, [1] where, [2] phase, [3] block
  u32* word;
  u64 patience;

  __device__ bool aborted() const { return *const_cast<volatile u32*>(word + ABORTED) != 0; }

  // The first block to lose patience names the place and the block that is furthest behind; everybody leaves.
  __device__ void report(int where, int phase) const {
    if (atomicExch(word + ABORTED, 1u) != 0) return;
    int culprit = blockIdx.x;
    if (where == WAIT_GRID) {
      const volatile u32* progress = word + PROGRESS;
#pragma unroll 1
      for (int block = 0; block < BLOCKS; ++block) {
        if (progress[block] < progress[culprit]) culprit = block;
      }
    }
    host[1] = where;
    host[2] = phase;
    host[3] = culprit;
    __threadfence_system();
    host[0] = 1;
  }
};

// Counts polls; looks at the clock and the abort word only now and then.
struct Patience {
  const Status& status;
  u64 began = 0;
  u32 polls = 0;

  __device__ explicit Patience(const Status& s) : status(s) {}

  // False when the wait must end.
  __device__ bool keep_waiting(int where, int phase) { return (++polls & 1023u) != 0 || look(where, phase); }

  // Kept out of the loops that wait: code that hardly ever runs must not push what does out of the instruction cache.
  __device__ __noinline__ bool look(int where, int phase) {
    const u64 now = clock64();
    if (began == 0) began = now;
    if (now - began > status.patience) status.report(where, phase);
    return !status.aborted();
  }

  // The same for one who waits on behalf of others, and leaves the clock to them.
  __device__ bool follow() { return (++polls & 1023u) != 0 || !status.aborted(); }
};

// Bounded waiting: nothing in the kernel waits without a clock limit and a look at the abort word.
#pragma once
#include "common.cuh"

enum class Wait : int { MT_WAITS };

// Words of the buffer `barrier`; PROGRESS + block: the last phase it finished.
enum BarrierWord : int { MT_BARRIER_WORDS };

// Words of the buffer `status`.
enum class StatusWord : int { MT_STATUS_WORDS };

__device__ inline bool aborted() { return *const_cast<volatile u32*>(common().to.barrier + ABORTED) != 0; }

// The first block whose wait takes too long names the place and the block that is furthest behind; everybody leaves.
__device__ inline void report(Wait wait) {
  const Common& s = common();
  u32* word = s.to.barrier;
  if (atomicExch(word + REPORTED, 1u) != 0) return;
  int culprit = blockIdx.x, phase = own_state().phase + 1;
  if (wait == Wait::RESULTS) {
    const volatile u32* progress = word + PROGRESS;
#pragma unroll 1
    for (int block = 0; block < BLOCKS; ++block) {
      if (progress[block] < progress[culprit]) culprit = block;
    }
    phase = progress[culprit] + 1;
  }
  volatile int* host = s.to.status;
  host[int(StatusWord::WAIT)] = int(wait);
  host[int(StatusWord::PHASE)] = phase;
  host[int(StatusWord::BLOCK)] = culprit;
  __threadfence_system();
  host[int(StatusWord::ABORTED)] = 1;
  atomicExch(word + ABORTED, 1u);
}

// Counts polls; looks at the clock and the abort word only now and then.
struct SpinGuard {
  u64 began = 0;
  u32 polls = 0;

  // False when the wait must end.
  __device__ bool keep_spinning(Wait wait) {
    if (!now_and_then(polls)) return true;
    const u64 now = clock64();
    if (began == 0) began = now;
    if (now - began > common().to.spin_ticks) report(wait);
    return !aborted();
  }

  // The same for a thread that waits on behalf of others, which watch the clock.
  __device__ bool keep_following() { return !now_and_then(polls) || !aborted(); }
};

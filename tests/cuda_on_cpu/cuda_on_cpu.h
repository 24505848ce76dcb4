// Enough of CUDA to run the codec's kernels on a CPU, exactly but slowly: every thread of a block is a fiber that runs until
// it waits for others. What the kernels say about memory order and asynchronous copies is not put to the test.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float4 __ldcg(const float4* pointer) { return *pointer; }
inline void __threadfence() {}
inline int atomicAdd(int* pointer, int value) {
  const int before = *pointer;
  *pointer += value;
  return before;
}

namespace emulation {

constexpr int STACK_BYTES = 1 << 16, MAX_WARPS = 32;

struct Barrier {
  int waiting = 0, generation = 0;

  // The last of `count` passes at once; the others go on to `next` until it has come.
  template <class Next>
  void wait(int count, Next next) {
    const int before = generation;
    if (++waiting == count) {
      waiting = 0, ++generation;
      return;
    }
    while (generation == before) next();
  }
};

inline std::vector<ucontext_t> fibers;
inline std::vector<char> stacks, finished;
inline std::function<void()> body;
inline ucontext_t home;
inline Barrier block, warps[MAX_WARPS];
inline float4 shared[1 << 14];

inline void switch_to(unsigned next) {
  const unsigned from = threadIdx.x;
  threadIdx.x = next;
  if (from != next) swapcontext(&fibers[from], &fibers[next]);
}

inline void wait_for_warp() {
  warps[threadIdx.x / 32].wait(32, [] { switch_to(threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32); });
}

inline void wait_for_block() {
  block.wait(int(fibers.size()), [] { switch_to((threadIdx.x + 1) % fibers.size()); });
}

inline void run_fiber() {
  body();
  finished[threadIdx.x] = true;
  for (size_t i = 1; i < fibers.size(); ++i) {
    const unsigned next = (threadIdx.x + i) % fibers.size();
    if (!finished[next]) {
      threadIdx.x = next;
      setcontext(&fibers[next]);
    }
  }
  setcontext(&home);
}

inline void run(int blocks, int threads, std::function<void()> work) {
  body = std::move(work);
  stacks.resize(size_t(threads) * STACK_BYTES);
  gridDim.x = blocks, blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    fibers.assign(threads, {});
    finished.assign(threads, false);
    for (int thread = 0; thread < threads; ++thread) {
      getcontext(&fibers[thread]);
      fibers[thread].uc_stack.ss_sp = stacks.data() + size_t(thread) * STACK_BYTES;
      fibers[thread].uc_stack.ss_size = STACK_BYTES;
      makecontext(&fibers[thread], run_fiber, 0);
    }
    std::memset(shared, 0xff, sizeof shared);  // not numbers: whoever reads what nobody wrote shall notice
    threadIdx.x = 0;
    swapcontext(&home, &fibers[0]);
  }
}

// What the lanes of a warp show each other. The second copy lets fast lanes show the next while slow ones still look.
template <class Value>
struct Exchange {
  Value values[MAX_WARPS][2][32];
  int turn[MAX_WARPS][32] = {};

  Value* show(const Value& own) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, now = turn[warp][lane] ^= 1;
    values[warp][now][lane] = own;
    wait_for_warp();
    return values[warp][now];
  }
};

}  // namespace emulation

inline void __syncthreads() { emulation::wait_for_block(); }

inline float __shfl_xor_sync(unsigned, float value, int mask) {
  static emulation::Exchange<float> exchange;
  return exchange.show(value)[threadIdx.x % 32 ^ mask];
}

// The start of the shared memory of a block of either kernel: data for waiting, publishing and choosing.
#pragma once
#include "params.cuh"
#include "phases.cuh"

// Wait for all consumer warps of the block.
__device__ inline void consumer_sync() { sync_threads<CONSUMERS>(); }

// The next stage of the ring, and the parity of its barriers.
struct PipelineState {
  int stage = 0;
  u32 parity = 0;

  __device__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Private state of each consumer warp.
struct ConsumerState {
  PipelineState ring;
  int phase = 0;   // number of phases that this launch has finished
  int buffer = 0;  // which of the two `partial`
};

// Scratch of one choice.
struct SamplerScratch {
  i64 weight[CHOICES];
  i64 sum[3][WARPS];
  u64 best[WARPS];
  u32 key[CHOICES];
  u32 top[CONSUMERS];
  u32 bound[WARPS];
  u32 peak[WARPS];
  u32 count;
  u16 place[CHOICES];
};

struct Common {
  Buffers to;
  Launch launch;
  ConsumerState state[THREADS / 32];
  int arrived;       // this block has arrived at a grid barrier and not yet seen the others there
  u32 target;        // arrivals that complete that barrier
  int timed_out[4];  // a wait of the phase with this number, modulo 4, was abandoned
  int quit;
};

__device__ inline Common& common() { return *static_cast<Common*>(block_memory()); }

// All threads of the block: what they will read often comes to shared memory.
template <int BY>
__device__ inline void copy_words(void* target, const void* source, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += BY) static_cast<int*>(target)[i] = static_cast<const int*>(source)[i];
}

__device__ inline ConsumerState& own_state() { return common().state[threadIdx.x >> 5]; }

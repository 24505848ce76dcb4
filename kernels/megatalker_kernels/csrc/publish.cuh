// Publishing results from block to block, and awaiting them, without a barrier. Values travel as quads: four float32 in 16
// aligned bytes, which one access writes or reads as a whole. The lowest byte of each number gives way to one byte of a tag
// that names launch and phase, so the data themselves tell a reader whether they are there: one trip through the L2 cache
// instead of three.
//
// No quad is overwritten before it has been read. Each buffer is written again two phases later at the earliest, by a block
// that has awaited all results of a phase between, whose writers had all read theirs; phases.cuh asserts that.
#pragma once
#include "number.cuh"
#include "status.cuh"

// The tag of the last phase's results; `ahead` is 1 for the results of this phase.
__device__ inline u32 tag_of_phase(int ahead) { return u32(common().to.ticket) << PHASE_BITS | u32(own_state().phase + ahead); }

__device__ inline void publish_quad(float* place, float4 value, u32 tag) {
  const auto mark = [](float number, u32 byte) { return __byte_perm(__float_as_uint(number), byte, 0x3214); };
  const u32 a = mark(value.x, tag), b = mark(value.y, tag >> 8), c = mark(value.z, tag >> 16), d = mark(value.w, tag >> 24);
  store_quad(place, a, b, c, d);
}

struct Quad {
  u32 word[4];

  __device__ bool has_tag(u32 tag) const {
    return __byte_perm(__byte_perm(word[0], word[1], 0x0040), __byte_perm(word[2], word[3], 0x0040), 0x5410) == tag;
  }
  __device__ float4 values() const { return {without_tag(word[0]), without_tag(word[1]), without_tag(word[2]), without_tag(word[3])}; }
};

// Reads a quad if it is wanted.
__device__ inline void load_if(bool wanted, const float* place, Quad& quad) { load_quad(wanted, place, quad.word); }

// Whether to go on waiting for results. If not, the block leaves at the end of this phase's products.
__device__ inline bool spin_on(SpinGuard& guard) {
  if (guard.keep_spinning(Wait::RESULTS)) return true;
  common().timed_out[own_state().phase % 4] = 1;
  return false;
}

// The quad at this place as soon as it is there, or whatever lies there when the wait takes too long.
__device__ inline Quad await_quad(const float* place, u32 tag) {
  Quad quad;
  SpinGuard guard;
  do {
    load_if(true, place, quad);
  } while (!quad.has_tag(tag) && spin_on(guard));
  return quad;
}

// After a consumer_sync that follows the waiting: whether all warps got what they waited for. A flag is used again only
// after another such sync.
__device__ inline bool all_arrived() { return !common().timed_out[own_state().phase % 4]; }

// Clock ticks on finishing a phase (0), and on having the results of the phase before (1).
__device__ inline void stamp(int which) {
  const Common& s = common();
  if (s.to.profile) s.to.profile[(u64(blockIdx.x) * MAX_PHASES + own_state().phase) * 2 + which] = clock64();
}

// Each consumer warp for itself. False: the launch asked to stop here.
__device__ inline bool end_phase(bool worked) {
  const Common& s = common();
  ConsumerState& state = own_state();
  __syncwarp();
  if ((threadIdx.x & 31) == 0) ++state.phase;
  __syncwarp();
  if (threadIdx.x == 0) {
    *const_cast<volatile u32*>(s.to.barrier + PROGRESS + blockIdx.x) = state.phase;
    if (worked) stamp(0);
  }
  return state.phase != s.launch.stop_after;
}

// Test: this block stops for good before its share of a phase.
__device__ inline bool stall() {
  const Launch& launch = common().launch;
  if (launch.stall_phase != own_state().phase + 1 || launch.stall_block != int(blockIdx.x)) return false;
  while (!aborted()) __nanosleep(1000);
  return true;
}

// What a block of the kernel of many rows keeps in shared memory.
#pragma once
#include "common.cuh"
#include "extent.cuh"
#include "wide_params.cuh"

constexpr int ARENA_BYTES = MT_WIDE_ARENA_BYTES;  // for what one phase needs
constexpr int MOST_TILES = 12, MOST_ROWS = 128;   // weight tiles and rows of a product that a block works on at once

// The pass that is under way.
struct WidePass {
  bool talker;
  int number;  // position of the predictor, or TALKER_PASS
  Sizes sizes;
  const float* norms;
  float eps, mean;
};

struct WideShared : Common {
  alignas(128) uint4 arena[ARENA_BYTES / 16];
  WideBuffers wide;
  WidePass pass;
  const char* tile[MOST_TILES];  // where weight tiles begin, or the pair that they are in,
  int of_pair[MOST_TILES];       // of which they are the first (1) or the second (2), or 0
  float factor[MOST_ROWS];       // of the rows' norm
};

static_assert(sizeof(WideShared) <= MT_SHARED_BYTES && sizeof(SamplerScratch) <= ARENA_BYTES);

__device__ inline WideShared& wide_shared() { return *static_cast<WideShared*>(block_memory()); }

// What a block of the kernel of many rows keeps in shared memory.
#pragma once
#include "common.cuh"
#include "extent.cuh"
#include "wide_params.cuh"

constexpr int ARENA_BYTES = MT_WIDE_ARENA_BYTES;  // for what one phase needs
constexpr int MOST_TILES = 12, MOST_ROWS = 128;   // weight tiles and rows of a product that a block works on at once
constexpr int MOST_STAGES = 8;                    // of its operands in shared memory
constexpr int MOST_PIECES = 8;                    // of keys and values in the ring of a warp
constexpr int KINDS = sizeof(PHASES) / sizeof(PHASES[0]);

// The pass that is under way.
struct WidePass {
  bool talker;
  int number;  // position of the predictor, or TALKER_PASS
  Sizes sizes;
  const float* norms;
  float eps, mean;
};

// Where a tile of weights begins, or the pair that it is in: in the first layer, or of the first head.
struct WideTile {
  const char* start;
  u32 of_layer;  // bytes to the same place in the next one
  int of_pair;   // it is the first (1) or the second (2), or there is none
};

struct WideShared : Common {
  alignas(128) uint4 arena[ARENA_BYTES / 16];
  WideBuffers wide;
  WidePass pass;
  int division[2][KINDS];       // of products, of the predictor and of the talker: see wide_product.cuh
  WideTile tile[2][KINDS][MOST_TILES];  // of the first part that this block has of each
  WideTile further_tile[MOST_TILES];    // of a further one
  float factor[MOST_ROWS];      // of the rows' norm
  u64 landed[MOST_STAGES], multiplied[MOST_STAGES];  // barriers of the stages that warpgroups multiply
  u32 laps;                     // of these, a bit for each: the parity of what comes next
  u64 piece_landed[WARPS][MOST_PIECES];  // barriers of the keys and values that each warp attends to,
  u32 piece_laps[WARPS];                 // as above
};

static_assert(sizeof(WideShared) <= MT_SHARED_BYTES && sizeof(SamplerScratch) <= ARENA_BYTES);

__device__ inline WideShared& wide_shared() { return *static_cast<WideShared*>(block_memory()); }

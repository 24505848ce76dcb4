// Shared memory of a block of the wide kernel.
#pragma once
#include "common.cuh"
#include "extent.cuh"
#include "wide_params.cuh"

constexpr int ARENA_BYTES = MT_WIDE_ARENA_BYTES;  // for what one phase needs
constexpr int MOST_TILES = 12, MOST_ROWS = 128;   // weight tiles and rows of a product that a block works on at once
constexpr int MOST_STAGES = 8;                    // of its operands in shared memory
constexpr int MOST_PIECES = 8;                    // of keys and values in the ring of a warp
constexpr int OWN_STREAMS = (MT_WIDE_STREAMS + BLOCKS - 1) / BLOCKS;
constexpr int KINDS = sizeof(PHASES) / sizeof(PHASES[0]);

// Passes of a kind divide their products alike. The predictor's first two positions share a pass, as two rows a stream.
constexpr int OF_PREDICTOR = 0, OF_TALKER = 1, OF_PAIRS = 2, PASS_KINDS = 3;

// The pass that is under way.
struct WidePass {
  int kind;
  bool talker;
  int number;  // position of the predictor, of pairs the second one, or TALKER_PASS
  int rows;
  int padded;  // rows, a multiple of 16: operands have room for them
  Sizes sizes;
  const float* norms;
  float eps, mean;
};

// Start of a tile of weights, or of its pair of tiles: in the first layer, or of the first head.
struct WideTile {
  const char* start;
  u32 of_layer;  // bytes to the same place in the next one
  int of_pair;   // it is the first (1) or the second (2), or there is none
};

__device__ inline int padded_rows(int rows) { return (rows + 2 * TILE - 1) / (2 * TILE) * 2 * TILE; }

struct WideShared : Common {
  alignas(128) uint4 arena[ARENA_BYTES / 16];
  WideBuffers wide;
  WidePass pass;
  int division[PASS_KINDS][KINDS];               // of products: see wide_product.cuh
  WideTile tile[PASS_KINDS][KINDS][MOST_TILES];  // of the first part that this block has of each
  WideTile further_tile[MOST_TILES];    // of a further one
  float factor[MOST_ROWS];      // of the rows' norm
  u64 landed[MOST_STAGES], multiplied[MOST_STAGES];  // barriers of the stages that warpgroups multiply
  u32 laps;                     // of these, a bit for each: the parity of what comes next
  u64 piece_landed[WARPS][MOST_PIECES];  // barriers of the keys and values that each warp attends to,
  u32 piece_laps[WARPS];                 // as above
  Row own_row[OWN_STREAMS];              // of the streams whose codes this block chooses,
  Sampling own_sampling[OWN_STREAMS];    // and how
};

static_assert(sizeof(WideShared) <= MT_SHARED_BYTES && sizeof(SamplerScratch) <= ARENA_BYTES);

__device__ inline WideShared& wide_shared() { return *static_cast<WideShared*>(block_memory()); }

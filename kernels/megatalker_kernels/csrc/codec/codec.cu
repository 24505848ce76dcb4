// The streaming codec's decoder in four kinds of kernel; a step is a chain of about eighty launches.
#include "rows.cuh"
#include "warpgroup.cuh"
#include "warps.cuh"

static_assert(sizeof(Product) == PRODUCT_BYTES && sizeof(Attention) == ATTENTION_BYTES, "see structures.py");
static_assert(sizeof(Lookup) == LOOKUP_BYTES && sizeof(Mixing) == MIXING_BYTES, "see structures.py");

#define PRODUCT(NAME, ROWS, COLUMNS, HIGH, WIDE, DEEP, DEPTH, STAGES, RESIDENT, SHARED_BYTES)               \
  static_assert(Tile<ROWS, COLUMNS, HIGH, WIDE, DEEP, DEPTH, STAGES>::SHARED == SHARED_BYTES, "see tiles.py"); \
  extern "C" __global__ void __launch_bounds__(32 * HIGH * WIDE * DEEP, RESIDENT)                           \
      megatalker_codec_##NAME(const __grid_constant__ Product p) {                                          \
    multiply<Tile<ROWS, COLUMNS, HIGH, WIDE, DEEP, DEPTH, STAGES>>(p);                                      \
  }

#define WARPGROUP_PRODUCT(NAME, ROWS, DEPTH, STAGES, RESIDENT, SHARED_BYTES)                        \
  static_assert(WarpgroupTile<ROWS, DEPTH, STAGES>::SHARED == SHARED_BYTES, "see tiles.py");       \
  extern "C" __global__ void __launch_bounds__(WarpgroupTile<ROWS, DEPTH, STAGES>::THREADS, RESIDENT) \
      megatalker_codec_##NAME(const __grid_constant__ Product p) {                                 \
    multiply<WarpgroupTile<ROWS, DEPTH, STAGES>>(p);                                               \
  }

PRODUCTS  // one for each tile

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)
    megatalker_codec_attention(const __grid_constant__ Attention p) {
  attend(p);
}

extern "C" __global__ void megatalker_codec_lookup(const __grid_constant__ Lookup p) { look_up(p); }

extern "C" __global__ void __launch_bounds__(MIXING_THREADS)
    megatalker_codec_mixing(const __grid_constant__ Mixing p) {
  mix(p);
}

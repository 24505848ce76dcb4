// What one warp fetches into the ring, in the order in which the others need it: the block's weights, which packing.py lays
// out alike, matrices in the order of first use; and the keys and values of the talker's earlier positions that it attends to.
#pragma once
#include "matrix.cuh"
#include "units.cuh"

// Two predictor positions share the first pass when their rows fit.
__device__ inline bool merged(const Launch& launch) { return 2 * launch.rows <= ROWS; }

// Of 0 ... GROUPS: the predictor's passes, by their position, and the talker's; before them the projection of the hidden
// states (-1), where there is one. Pass 0 is left out where it is merged.
__device__ inline int first_pass(const Launch& launch) {
  return launch.mode != DECODE ? GROUPS : PROJECTS ? -1 : merged(launch) ? 1 : 0;
}

__device__ inline u64 share_of(Extent extent) { return u64(tiles_of_block(extent.tiles)) * TILE * extent.columns * 2; }

__device__ inline u64 share_of_layers(const Sizes& z) {
  u64 layer = 0;
  for (const Kind kind : {QUERIES_KEYS_VALUES, OUT, GATE_AND_UP, DOWN}) layer += share_of(Extent(kind, z));
  return layer * z.layers;
}

// The stored keys and values of this block's units.
__device__ inline void fetch_stored(Writer& writer, const Stretch<TalkerRows>& stretch, int layer) {
  constexpr int D = Talker::HEAD_DIM, TOGETHER = stored_together(D);
  if (stretch.count() == 0) return;
  Unit<TalkerRows> unit;
  unit.find(stretch.begin);
#pragma unroll 1
  for (int left = stretch.count(); left > 0; --left, unit.advance()) {
#pragma unroll 1
    for (int begin = 0; begin < CHUNK; begin += TOGETHER) {
      const int size = unit.stored_of(begin, TOGETHER) * D * 2;
      if (size <= 0) break;
      const u16* keys = unit.key(layer, unit.chunk * CHUNK + begin, D);
      writer.put({keys, size}, {keys + unit.values_apart(D), size});
    }
  }
}

__device__ inline void fetch_all(Writer& writer) {
  const char* weights = reinterpret_cast<const char*>(shared().to.weights) + shared().to.block_offset[blockIdx.x];
  Stretch<TalkerRows> stretch;
  const Launch& launch = shared().launch;
  const bool decoding = launch.mode == DECODE;
  const Sizes predictor = Sizes::of<Predictor>();
  const u64 first_layer = PROJECTS ? share_of(Extent(PROJECT, predictor)) : 0, heads = first_layer + share_of_layers(predictor);
  const u64 head = share_of(Extent(HEAD, predictor));
#pragma unroll 1
  for (int pass = first_pass(launch); pass <= GROUPS && writer.alive; ++pass) {
    if (pass == 0 && merged(launch)) continue;
    const bool talker = pass == GROUPS;
    if (talker) stretch = Stretch<TalkerRows>::own();  // only now: the first weights shall not wait for it
    const Sizes z = talker ? Sizes::of<Talker>() : predictor;
    const int layers = pass < 0 ? 0 : z.layers;
    const bool with_head = talker ? decoding || launch.finish : pass != 0;
    u64 offset = talker ? heads + (GROUPS - 1) * head : pass < 0 ? 0 : first_layer;
#pragma unroll 1
    for (int layer = 0, step = 0; layer < layers + with_head;) {
      const Kind kind = pass < 0 ? PROJECT : layer == layers ? HEAD : Kind(step);
      if (kind == HEAD && !talker) offset = heads + (pass - 1) * head;
      const Extent extent(kind, z);
      if (kind == ATTENTION && talker) fetch_stored(writer, stretch, layer);
#pragma unroll 1
      for (int tiles = kind == ATTENTION ? 0 : tiles_of_block(extent.tiles); tiles > 0; tiles -= 2) {
        const int together = min(tiles, 2), stage_columns = 2 * STAGE_COLUMNS / together;
#pragma unroll 1
        for (int column = 0; column < extent.columns; column += stage_columns) {
          const int bytes = TILE * 2 * together * min(stage_columns, extent.columns - column);
          writer.put({weights + offset, bytes});
          offset += bytes;
        }
      }
      if (++step == HEAD || layer == layers) step = 0, ++layer;
    }
  }
}

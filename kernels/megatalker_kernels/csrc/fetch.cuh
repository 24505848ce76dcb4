// Data that one warp fetches into the ring, in the order in which the others need it: the block's weights, in the layout
// of packing.py, matrices in the order of first use; and the keys and values of the talker's earlier positions that it attends to.
#pragma once
#include "matrix.cuh"
#include "passes.cuh"
#include "units.cuh"

// The stored keys and values of this block's units.
__device__ inline void fetch_stored(Producer& producer, const WorkRange<TalkerRows>& range, int layer) {
  constexpr int D = Talker::HEAD_DIM, TOGETHER = stored_together(D);
  if (range.count() == 0) return;
  WorkUnit<TalkerRows> unit;
  unit.find(range.begin);
#pragma unroll 1
  for (int left = range.count(); left > 0; --left, unit.advance()) {
#pragma unroll 1
    for (int begin = 0; begin < CHUNK; begin += TOGETHER) {
      const int size = unit.stored_of(begin, TOGETHER) * D * int(sizeof(Stored));
      if (size <= 0) break;
      const Stored* keys = unit.key(layer, unit.chunk * CHUNK + begin, D);
      producer.fill({keys, size}, {keys + unit.values_apart(D), size});
    }
  }
}

__device__ inline void fetch_all(Producer& producer) {
  const char* weights = reinterpret_cast<const char*>(shared().to.weights) + shared().to.block_offset[blockIdx.x];
  WorkRange<TalkerRows> range;
  const Launch& launch = shared().launch;
  const Sizes predictor = Sizes::of<Predictor>();
  const Places places(blockIdx.x);
#pragma unroll 1
  for (int pass = first_pass(launch); pass <= TALKER_PASS && producer.alive; ++pass) {
    if (pass == 0 && merged(launch)) continue;
    const bool talker = pass == TALKER_PASS;
    if (talker) range = WorkRange<TalkerRows>::own();  // only now: the first weights shall not wait for it
    const Sizes z = talker ? Sizes::of<Talker>() : predictor;
    const int layers = pass < 0 ? 0 : z.layers;
    const bool with_last = has_last_phase(pass);
    u64 offset = talker ? places.talker : pass < 0 ? 0 : places.predictor;
#pragma unroll 1
    for (int layer = 0, step = 0; layer < layers + with_last;) {
      const PhaseKind kind = pass < 0 ? PROJECT : layer == layers ? HEAD : PhaseKind(step);
      if (kind == HEAD && !talker) offset = places.heads + (pass - 1) * places.head;
      const Extent extent(kind, z);
      if (kind == ATTENTION && talker) fetch_stored(producer, range, layer);
#pragma unroll 1
      for (int tiles = kind == ATTENTION ? 0 : tiles_of_block(extent.tiles); tiles > 0; tiles -= 2) {
        const int together = min(tiles, 2), stage_columns = 2 * STAGE_COLUMNS / together;
#pragma unroll 1
        for (int column = 0; column < extent.columns; column += stage_columns) {
          const int bytes = TILE * int(sizeof(Weight)) * together * min(stage_columns, extent.columns - column);
          producer.fill({weights + offset, bytes});
          offset += bytes;
        }
      }
      if (++step == LAYER_PHASES || layer == layers) step = 0, ++layer;
    }
  }
}

// Sizes of the matrices, and where each block's share of them lies.
#pragma once
#include "phases.cuh"

struct Extent {
  int columns, tiles;

  __device__ constexpr Extent(PhaseKind kind, const Sizes& z)
      : columns(kind == reader_of(Buffer::attention)    ? z.attention
                : kind == reader_of(Buffer::activation) ? z.intermediate
                : kind == reader_of(Buffer::hidden)     ? Talker::HIDDEN
                                                        : z.hidden),
        tiles((kind == writer_of(Buffer::qkv)          ? z.qkv
               : kind == writer_of(Buffer::activation) ? 2 * z.intermediate
               : kind == writer_of(Buffer::logits)     ? z.vocab
                                                       : z.hidden) /
              TILE) {}
};

// MT_EXTENTS holds a line for each matrix of the table.
#define EXTENT(STACK, KIND, ROWS, COLUMNS)                                                                          \
  static_assert(Extent(KIND, Sizes::of<STACK>()).tiles * TILE == ROWS, #STACK ": rows of " #KIND " in phases.py");  \
  static_assert(Extent(KIND, Sizes::of<STACK>()).columns == COLUMNS, #STACK ": columns of " #KIND " in phases.py");
MT_EXTENTS
#undef EXTENT

__device__ inline int tiles_of(int block, int tiles) { return (tiles - block + BLOCKS - 1) / BLOCKS; }
__device__ inline int tiles_of_block(int tiles) { return tiles_of(blockIdx.x, tiles); }

// Bytes of a block's share of a matrix, and of the layers of a stack.
__device__ inline u64 share_of(int block, Extent extent) {
  return u64(tiles_of(block, extent.tiles)) * TILE * extent.columns * sizeof(Weight);
}

__device__ inline u64 share_of_layer(int block, const Sizes& z) {
  u64 layer = 0;
  for (const PhaseKind kind : {MT_LAYER_MATRICES}) layer += share_of(block, Extent(kind, z));
  return layer;
}

// Offsets of a block's matrices in its part of the weights, in the layout of packing.py.
struct Places {
  u64 predictor, heads, head, talker;  // `head` is the size of one

  __device__ explicit Places(int block) {
    const Sizes z = Sizes::of<Predictor>();
    predictor = PROJECTS ? share_of(block, Extent(PROJECT, z)) : 0;
    heads = predictor + share_of_layer(block, z) * z.layers;
    head = share_of(block, Extent(HEAD, z));
    talker = heads + (GROUPS - 1) * head;
  }
};

// Shared memory of a block of the megakernel. shapes.py computes its size.
#pragma once
#include "common.cuh"

// A row of the residual stream at the start of a stack: values, or an embedding from a table, or (both null) what the phase
// before published.
struct Source {
  const float* values;
  const Weight* table;

  __device__ bool given() const { return values || table; }
};

// The stack of layers that the rows are going through.
struct Pass {
  int number;             // see passes.cuh
  Sizes sizes;
  int first_phase, phases;
  PhaseKind last;            // phase, after those of the layers
  const float* norms;
  const Stream* stream;   // [slots], whose pages are meant; or null: a row's slot is its page
  Stored* kv;             // [layers][pages][2][kv heads][PAGE][head_dim]
  u64 layer_elements;     // of `kv`
  float eps;
  float mean;             // 1 / sizes.hidden
  int rows;
  int shift;              // 1 << shift rows have room in an operand
};

// The activations of a product, as operand A of mma.m16n8k16: [columns / KBLOCK][1 << shift rows][4] vectors of eight
// neighbouring columns; and what each warp adds to the results.
struct Product {
  uint4 operand[OPERAND_COLUMNS * sizeof(Operand) / sizeof(uint4) * ROWS];
  float partial[2][WARPS][GROUP_TILES][ROWS][TILE];  // the next tiles' sums are added up while these are still read
};

// Results of the warps for one chunk.
struct AttentionShares {
  float total[WARPS][MAX_QUERIES][MAX_HEAD_DIM];  // each warp's weighted values,
  float peak[WARPS][MAX_QUERIES];                 // its largest score
  float mass[WARPS][MAX_QUERIES];                 // and the sum of its weights
};

struct AttentionSpace {
  uint4 query[MAX_HEAD_DIM / 4 * MAX_QUERIES];  // as operands: see Queries
  Stored fresh[2][ROWS][MAX_HEAD_DIM];                // keys and values of this pass, as stored
  AttentionShares shares[2];                       // the next chunk's while these are still read
  int last;
};

struct Shared : Common {
  alignas(128) uint4 ring[STAGES][STAGE_BYTES / 16];
  u64 full[STAGES];
  u64 empty[STAGES];
  union {
    Product product;
    AttentionSpace attention;
    SamplerScratch scratch;
  };
  float norm[MAX_HIDDEN];  // weights of one norm
  float rope[ROWS][MAX_HEAD_DIM];
  float residual[OWNED_TILES][ROWS][TILE];  // of the columns that this block owns
  alignas(16) float squares[ROWS][WARPS];
  Sampling sampling[ROWS];
  Pass pass;
  Source source[ROWS];
  float* logits[ROWS];
  int codes[ROWS][GROUPS];
  int slot[ROWS];
  int position[ROWS];
  int fresh_from[ROWS];  // the first position of this pass that belongs to the row's stream; later ones are the rows before it
};

static_assert(sizeof(Shared) <= MT_SHARED_BYTES, "shared_bytes() of shapes.py counts too little");

__device__ inline Shared& shared() { return *static_cast<Shared*>(block_memory()); }

// Parameters of the wide kernel from the host, in addition to those of both kernels. Its buffers have room for all rows of a launch, and
// some are laid out in another way: `x` is the residual stream [rows][hidden] as it is, `qkv` [rows][qkv] as it is, and
// `attention` and `activation` are operands, [columns / KBLOCK][padded rows][KBLOCK] bfloat16 (see WidePass and put_columns). `partial` is
// [chunks][heads][head_dim + CHUNK_STATS], `predictor_kv` [layers][room][2][kv heads][GROUPS][head_dim].
#pragma once
#include "params.cuh"

// The positions that a row attends to at once.
struct RowChunk {
  int row, number;     // of its chunks
  int position;        // of the row
  int first;           // chunks of the rows before it
  int page[2];         // the only one twice
  int unused[2];
};

struct WideBuffers {
  const Row* row;        // [rows]; `Launch` has none of them
  const int* chunk;      // [chunks]: row * MAX_CHUNKS + number, the longest first: what talker attention is divided into
  const int* first;      // [rows]: chunks of the rows before it
  const int* heard;      // [rows]: place among those whose hidden state and logits are wanted, or -1
  const int* source;     // [heard rows]: their rows
  Operand* operand;      // [columns / KBLOCK][padded rows][KBLOCK]: the residual stream, times the norm's weights
  float* squares;        // [rows][SQUARES]: of the residual stream, by column blocks
  int* picked;           // [rows][GROUPS]
  RowChunk* row_chunk;   // [chunks], as `chunk`
  int chunks;
  int heards;
  int room;              // rows of `predictor_kv`
};

struct WideParams {
  Buffers to;
  Launch launch;
  WideBuffers wide;
};

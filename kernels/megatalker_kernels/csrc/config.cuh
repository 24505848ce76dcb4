// Constants and sizes of one compiled kernel. The MT_* macros come from constants.py and shapes.py; the latter checks the same
// rules and names the one that failed.
#pragma once
#include "primitive.cuh"

using Weight = u16;   // bfloat16: of matrices and embeddings
using Operand = u16;  // bfloat16: of activations that are multiplied
using Stored = u16;   // bfloat16: of keys and values
static_assert(sizeof(Weight) == MT_WEIGHT_BYTES && sizeof(Operand) == MT_OPERAND_BYTES && sizeof(Stored) == MT_STORED_BYTES);

constexpr int ROWS = MT_ROWS;                // streams of one launch
constexpr int WARPS = MT_WARPS;              // each takes its share of every dot product
constexpr int CONSUMERS = WARPS * 32;
constexpr int THREADS = MT_THREADS;          // the consumers, and one warp that fetches weights
constexpr int TILE = MT_TILE;                // weight rows of one matrix tile
constexpr int KBLOCK = MT_KBLOCK;            // columns of one fragment pair
constexpr int STAGE_COLUMNS = MT_STAGE_COLUMNS;
constexpr int STAGE_BYTES = MT_STAGE_BYTES;  // of two tiles, or twice as many columns of one
constexpr int STAGES = MT_STAGES;            // depth of the ring
constexpr int IN_FLIGHT = MT_IN_FLIGHT;      // copies requested and not yet landed
constexpr int OPERAND_COLUMNS = MT_OPERAND_COLUMNS;  // columns of the activations that a block holds at once
constexpr int GROUP_TILES = MT_GROUP_TILES;  // tiles reduced across warps at once; two of them are multiplied together
constexpr int PAGE = MT_PAGE;                // positions of one key/value page
constexpr int CHUNK = MT_CHUNK;              // positions that one block attends to at once
constexpr int CHUNK_STATS = MT_CHUNK_STATS;  // floats behind the weighted sum of a chunk: peak, mass, two for alignment
constexpr int QUAD = MT_QUAD;                // floats that are published together
constexpr int GROUPS = MT_CODE_GROUPS;       // codes of a frame
constexpr int MAX_PAGES = MT_MAX_PAGES;      // of one stream
constexpr int MAX_CHUNKS = MT_MAX_CHUNKS;    // of one stream
constexpr int PHASE_BITS = MT_PHASE_BITS;    // of a tag
constexpr int MAX_PHASES = MT_MAX_PHASES;    // of a launch
constexpr int OWNED_TILES = MT_OWNED_TILES;  // residual tiles of one block
constexpr int BLOCKS = MT_BLOCKS;

template <int HIDDEN_, int INTERMEDIATE_, int LAYERS_, int HEADS_, int KV_HEADS_, int HEAD_DIM_, int VOCAB_>
struct Stack {
  static constexpr int HIDDEN = HIDDEN_, INTERMEDIATE = INTERMEDIATE_, LAYERS = LAYERS_, HEADS = HEADS_;
  static constexpr int KV_HEADS = KV_HEADS_, HEAD_DIM = HEAD_DIM_, VOCAB = VOCAB_;
  static constexpr int QUERIES = HEADS / KV_HEADS;
  static constexpr int ATTENTION = HEADS * HEAD_DIM;
  static constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
  static constexpr int PAGE_ELEMENTS = 2 * KV_HEADS * PAGE * HEAD_DIM;  // of one layer
  static constexpr int NORMS = 2 * HIDDEN + 2 * HEAD_DIM;  // input, q, k, post-attention
  static_assert(HIDDEN % KBLOCK == 0 && INTERMEDIATE % KBLOCK == 0 && ATTENTION % KBLOCK == 0);
  static_assert(QKV % TILE == 0 && INTERMEDIATE % (TILE / 2) == 0 && VOCAB % TILE == 0);
  static_assert(HEADS % KV_HEADS == 0 && QUERIES < WARPS);
  static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128);
};

// Sizes of a stack at run time, so that both stacks share their code.
struct Sizes {
  int hidden, intermediate, layers, attention, qkv, kv_heads, vocab, norms;

  template <class S>
  __device__ static constexpr Sizes of() {
    return {S::HIDDEN, S::INTERMEDIATE, S::LAYERS, S::ATTENTION, S::QKV, S::KV_HEADS, S::VOCAB, S::NORMS};
  }
};

using Talker = Stack<MT_TALKER_SHAPE>;
using Predictor = Stack<MT_PREDICTOR_SHAPE>;

constexpr int FIRST_SUPPRESSED = Talker::VOCAB - MT_SUPPRESSED;  // officially `suppress_tokens`
constexpr bool PROJECTS = Talker::HIDDEN != Predictor::HIDDEN;
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
constexpr int MAX_HIDDEN = larger(Talker::HIDDEN, Predictor::HIDDEN);
constexpr int MAX_COLUMNS = larger(larger(MAX_HIDDEN, larger(Talker::ATTENTION, Predictor::ATTENTION)),
                                   larger(Talker::INTERMEDIATE, Predictor::INTERMEDIATE));
constexpr int MAX_HEAD_DIM = larger(Talker::HEAD_DIM, Predictor::HEAD_DIM);
constexpr int MAX_QUERIES = larger(Talker::QUERIES, Predictor::QUERIES);
constexpr int CHOICES = larger(FIRST_SUPPRESSED + 1, Predictor::VOCAB);  // ids that a code is chosen among

// How many of the talker's stored positions share a stage: first their keys, then their values.
__host__ __device__ constexpr int stored_together(int head_dim) {
  const int room = STAGE_BYTES / (2 * int(sizeof(Stored)) * head_dim);
  return room < PAGE ? room : PAGE;
}
static_assert(PAGE % stored_together(Talker::HEAD_DIM) == 0 && stored_together(Talker::HEAD_DIM) % 16 == 0);

static_assert(THREADS == CONSUMERS + 32 && CHUNK == WARPS * 16 && QUAD == 4 && MAX_PHASES <= 1 << PHASE_BITS);
static_assert(STAGE_BYTES == 2 * TILE * STAGE_COLUMNS * sizeof(Weight) && OWNED_TILES * BLOCKS * TILE >= MAX_HIDDEN);
static_assert(ROWS == 8, "one half of the m16 tile");
static_assert(STAGE_COLUMNS % (KBLOCK * WARPS) == 0 && OPERAND_COLUMNS % STAGE_COLUMNS == 0);
static_assert(OPERAND_COLUMNS >= MAX_COLUMNS || OPERAND_COLUMNS % (2 * STAGE_COLUMNS) == 0);
static_assert(PAGE % 16 == 0 && CHUNK % PAGE == 0 && GROUP_TILES % 2 == 0);
static_assert(IN_FLIGHT >= 1 && IN_FLIGHT <= STAGES);

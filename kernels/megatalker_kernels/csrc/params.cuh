// Parameters from the host. Layouts are mirrored in params.py, which checks sizeof and every offset against this file.
#pragma once
#include "config.cuh"

enum Mode : int { MT_MODES };

// How one stream chooses its codes; see megatalker/sampling for the contract.
struct Filter {
  double dropped;      // 1 - top_p, or negative for "keep all"
  double inverse_temperature;
  float temperature;
  int top_k;
  int do_sample;
  int unused;
};

struct Sampling {
  Filter talker, predictor;
  double inverse_penalty;
  u32 key[2];
  float penalty;
  int min_frames;
};

// State of a stream's slot, except keys and values.
struct Stream {
  Sampling sampling;
  u32 seen[Talker::VOCAB / 32];  // bits of the ids that were its first codes
  int pages[MAX_PAGES];          // of the talker's keys and values
};

// One row of a launch: a stream that takes a frame, or one position of a prompt.
struct Row {
  int slot;            // which stream's state
  int position;        // index of the key/value pair this row writes
  int frame;           // index of the frame: counter of the noise
  int forced;          // take `codes` instead of sampling
  int codes[GROUPS];
};

struct Launch {
  int mode;
  int rows;
  int stop_after;      // leave after this many phases; 0 runs to the end
  int stall_phase;     // test: block `stall_block` stops at this phase
  int stall_block;
  Row row[ROWS];
};

struct Buffers {
  const uint4* weights;
  const u64* block_offset;          // [BLOCKS], bytes
  const float* talker_norms;        // [layers][input | q | k | post] then the final norm
  const float* predictor_norms;
  const float* projection_bias;     // [predictor hidden] or null
  const Weight* sum_tables[GROUPS];    // [vocab][talker hidden]: what a code adds to the talker's input
  const Weight* input_tables[GROUPS];  // [vocab][predictor hidden]: what a code feeds the predictor
  const float* talker_rope;         // [positions][2][head_dim / 2]: cosines, sines
  const float* predictor_rope;
  Stored* talker_kv;                // [layers][pages][2][kv heads][PAGE][head_dim], dimensions as in units.cuh
  Stored* predictor_kv;             // [layers][ROWS][2][kv heads][PAGE][head_dim]
  int pages;
  int slots;
  const float* text;                // [ROWS][talker hidden]: text rows (decode) or prompt rows (prefill, of the wide kernel)
  float* x;                         // [ROWS][MAX_HIDDEN]: residual stream; this and the next three in tagged quads
  float* qkv;                       // [ROWS][MAX_QKV]
  float* attention;                 // [ROWS][MAX_ATTENTION], rounded to bfloat16
  float* activation;                // [ROWS][MAX_INTERMEDIATE], rounded to bfloat16
  float* chosen;                    // [ROWS][QUAD]: first the code of a row that one block chose for all, in a tagged quad
  float* partial;                   // [ROWS][MAX_HEADS][MAX_CHUNKS][head_dim + CHUNK_STATS]
  u32* arrivals;                    // [ROWS][MAX_KV_HEADS]
  float* hidden;                    // [slots][talker hidden]: after the final norm
  float* projected;                 // [ROWS][predictor hidden]
  float* pending;                   // [slots][talker vocab]
  float* predictor_logits;          // [ROWS][GROUPS - 1][predictor vocab]
  Stream* stream;                   // [slots]
  const i64* gumbel_table;          // [2 * GUMBEL_ROWS][4]
  const i64* decay_table;           // [DECAY_ROWS][4]
  u32* barrier;                     // [PROGRESS + BLOCKS] words, see status.cuh; zero before the first launch and after an abort
  u64* profile;                     // [BLOCKS][MAX_PHASES][2] or null, see stamp() in publish.cuh
  int* codes;                       // [ROWS][GROUPS + 1], host-visible; the last word of a row is the launch's ticket
  int* status;                      // host-visible: abort, phase, block
  int ticket;
  int eos;
  float talker_eps;
  float predictor_eps;
  u64 spin_ticks;                   // of the clock, that a wait may take
};

struct Params {
  Buffers to;
  Launch launch;
};

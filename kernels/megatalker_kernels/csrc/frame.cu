// One frame of up to ROWS streams, or ROWS positions of a prompt, in one cooperative launch. This file is the order of
// the phases; each role has a header of its own.
#include "attention.cuh"
#include "matrix.cuh"
#include "sampler.cuh"
#include "weights.cuh"

static_assert(ROWS <= BLOCKS, "one block chooses for one row");

constexpr int PROJECTION = -1;  // a pass: the hidden states of the streams, in the predictor's width
// 0 ... GROUPS - 1: the predictor's, at this position
constexpr int TALKING = GROUPS;

__device__ inline bool attend_layer(int layer) {
  constexpr bool SAME = Talker::HEAD_DIM == Predictor::HEAD_DIM && Talker::QUERIES == Predictor::QUERIES;
  if (SAME || shared().pass.page_table) return attend<Talker::HEAD_DIM, Talker::QUERIES>(layer);
  return attend<Predictor::HEAD_DIM, Predictor::QUERIES>(layer);
}

// One code of every row. A single row is chosen by every block for itself, which saves a hand-over; several rows are
// dealt to the blocks.
__device__ inline bool pick(int codebook) {
  Shared& s = shared();
  u32* chosen = s.to.barrier + CHOSEN;
  const int rows = s.launch.rows, dealt = rows == 1 ? 0 : blockIdx.x;
  if (dealt < rows && !s.launch.row[dealt].forced) {
    const int code = choose_code(dealt, codebook);
    if (threadIdx.x == 0) {
      s.codes[dealt][codebook] = code;
      if (rows > 1) chosen[dealt] = code;
    }
  }
  if (rows > 1) {
    arrive(0);
    if (!proceed()) return false;
  }
  if (threadIdx.x < rows) {
    const Row& row = s.launch.row[threadIdx.x];
    if (row.forced) {
      s.codes[threadIdx.x][codebook] = row.codes[codebook];
    } else if (rows > 1) {
      s.codes[threadIdx.x][codebook] = __ldcg(chosen + threadIdx.x);
    }
  }
  consumer_sync();
  return true;
}

// The codes, as early as they exist; the ticket comes last.
__device__ inline void publish() {
  const Shared& s = shared();
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
#pragma unroll 1
  for (int row = 0; row < s.launch.rows; ++row) {
#pragma unroll 1
    for (int i = 0; i < GROUPS; ++i) s.to.codes[row * (GROUPS + 1) + i] = s.codes[row][i];
  }
  __threadfence_system();
#pragma unroll 1
  for (int row = 0; row < s.launch.rows; ++row) {
    *const_cast<volatile int*>(s.to.codes + row * (GROUPS + 1) + GROUPS) = s.to.ticket;
  }
}

__device__ inline void remember() {
  const Shared& s = shared();
  if (blockIdx.x != 0 || threadIdx.x >= s.launch.rows) return;
  const int code = s.codes[threadIdx.x][0];
  s.to.seen[s.launch.row[threadIdx.x].slot * (Talker::VOCAB / 32) + code / 32] |= 1u << (code % 32);
}

// The talker's input: the sum of the frame's code embeddings and the text row.
__device__ inline void sum_embeddings() {
  const Shared& s = shared();
  constexpr int H = Talker::HIDDEN;
  each_owned(H, s.launch.rows, [&](int local, int row, int n) {
    const int column = owned_column(local, n);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) sum += widen(s.to.sum_tables[i][u64(s.codes[row][i]) * H + column]);
    s.to.x[row * H + column] = sum + s.to.text[row * H + column];
  });
}

__device__ inline void place(int row, int slot, int position, Source source, float* logits) {
  Shared& s = shared();
  s.slot[row] = slot, s.position[row] = position, s.source[row] = source, s.logits[row] = logits;
}

__device__ inline void place_talker_row(int r) {
  const Shared& s = shared();
  const Row& row = s.launch.row[r];
  const bool decoding = s.launch.mode == DECODE, heard = decoding || r == s.launch.rows - 1;
  place(r, row.slot, row.position, Source{(decoding ? s.to.x : s.to.text) + r * Talker::HIDDEN, nullptr},
        heard ? s.to.pending + u64(row.slot) * Talker::VOCAB : nullptr);
}

// Position `pass` of a stream; in the merged pass after its position 0.
__device__ inline void place_predictor_row(int r, int pass, bool pair) {
  const Shared& s = shared();
  const float* hidden = s.to.hidden + u64(s.launch.row[r].slot) * Talker::HIDDEN;
  const Source start{PROJECTS && pass != PROJECTION ? s.to.projected + r * Predictor::HIDDEN : hidden, nullptr};
  if (pass <= 0) return place(r, r, 0, start, nullptr);
  const u64 code = s.codes[r][pass - 1];
  const Source embedding{nullptr, s.to.input_tables[pass - 1] + code * Predictor::HIDDEN};
  float* logits = s.to.predictor_logits + (u64(r) * (GROUPS - 1) + pass - 1) * Predictor::VOCAB;
  if (pair) place(2 * r, r, 0, start, nullptr);
  place(pair ? 2 * r + 1 : r, r, pass, embedding, logits);
}

// Makes everything ready for the layers of the next pass.
__device__ __noinline__ bool begin() {
  Shared& s = shared();
  const Launch& launch = s.launch;
  int pass = s.pass.number + 1;
  if (pass == 0 && merged(launch)) ++pass;
  consumer_sync();
  const bool talking = pass == TALKING, decoding = launch.mode == DECODE, pair = pass == 1 && merged(launch);
  if (decoding && pass > 0) {
    if (!proceed()) return false;
    if (!pick(pass - 1)) return false;
    if (talking) {
      publish();
      remember();
      sum_embeddings();
      arrive(1);
    }
  }
  if (threadIdx.x < launch.rows) {
    if (talking) {
      place_talker_row(threadIdx.x);
    } else {
      place_predictor_row(threadIdx.x, pass, pair);
    }
  }
  if (threadIdx.x == 0) {
    Pass& p = s.pass;
    p.number = pass;
    p.first_phase = s.phase;
    p.sizes = talking ? Sizes::of<Talker>() : Sizes::of<Predictor>();
    if (pass == PROJECTION) p.sizes.layers = 0;
    p.last = pass == PROJECTION ? PROJECT : HEAD;
    p.phases = p.sizes.layers * HEAD + (talking ? decoding || launch.finish : pass != 0);
    p.norms = talking ? s.to.talker_norms : s.to.predictor_norms;
    p.page_table = talking ? s.to.page_table : nullptr;
    p.kv = talking ? s.to.talker_kv : s.to.predictor_kv;
    p.layer_elements = u64(talking ? s.to.pages * Talker::KV_HEADS * Talker::HEAD_DIM
                                   : ROWS * Predictor::KV_HEADS * Predictor::HEAD_DIM) * 2 * PAGE;
    p.eps = talking ? s.to.talker_eps : s.to.predictor_eps;
    p.mean = 1.f / p.sizes.hidden;
    p.rows = launch.rows << int(pair);
    p.shift = p.rows <= 1 ? 0 : p.rows <= 2 ? 1 : p.rows <= 4 ? 2 : 3;
  }
  consumer_sync();
  const int pieces = (talking ? Talker::HEAD_DIM : Predictor::HEAD_DIM) / 4;
  const float* rope = talking ? s.to.talker_rope : s.to.predictor_rope;
  for (int i = threadIdx.x; i < s.pass.rows * pieces; i += CONSUMERS) {
    const int row = i / pieces, part = i % pieces * 4;
    copy_piece(&s.rope[row][part], rope + s.position[row] * pieces * 4 + part);  // the phases see to its arrival
  }
  return true;
}

// The streams' new hidden states, after the last phase.
__device__ __noinline__ void keep_hidden() {
  const Shared& s = shared();
  constexpr int H = Talker::HIDDEN;
  each_owned(H, s.pass.rows, [&](int local, int row, int n) {
    if (s.logits[row] == nullptr) return;
    const float normed = s.residual[local][row][n] * norm_factor(row) * s.norm[owned_column(local, n)];
    s.to.hidden[u64(s.slot[row]) * H + owned_column(local, n)] = normed;
  });
}

// The phases of a pass; after the last one of a launch nothing is handed over. The loop's state lies in shared memory:
// the functions that it calls leave it no registers.
__device__ __forceinline__ bool run_pass() {
  const Shared& s = shared();
#pragma unroll 1
  while (true) {
    const int phase = s.phase - s.pass.first_phase, layer = phase / HEAD;
    if (phase == s.pass.phases) return true;
    const Kind kind = layer == s.pass.sizes.layers ? s.pass.last : Kind(phase % HEAD);
    if (!(kind == ATTENTION ? attend_layer(layer) : product(kind, layer))) return false;
    if (s.pass.number == TALKING && s.phase + 1 == s.pass.first_phase + s.pass.phases) return true;
    arrive(1);
  }
}

__device__ inline void take_frame() {
  do {
    if (!begin() || !run_pass()) return;
  } while (shared().pass.number != TALKING);
  if (shared().launch.mode == DECODE || shared().launch.finish) keep_hidden();
}

// What all phases read often lies in shared memory: a barrier that makes other blocks' writes visible empties the cache
// in front of everything else.
__device__ inline void copy_params(const Params& params) {
  Shared& s = shared();
  const auto copy = [](void* target, const void* source, int size) {
    for (int i = threadIdx.x; i < size / 4; i += THREADS) static_cast<int*>(target)[i] = static_cast<const int*>(source)[i];
  };
  copy(&s.to, &params.to, sizeof(Buffers));
  copy(&s.launch, &params.launch, sizeof(Launch));
  if (params.launch.mode == DECODE) {
    for (int row = 0; row < params.launch.rows; ++row) {
      copy(&s.sampling[row], &params.to.sampling[params.launch.row[row].slot], sizeof(Sampling));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) megatalker_frame(const __grid_constant__ Params params) {
  Shared& s = shared();
  copy_params(params);
  if (threadIdx.x < WARPS) s.cursor[threadIdx.x] = Cursor{};
  if (threadIdx.x == 0) {
    ring_init();
    s.phase = s.quit = s.handed_over = 0;
    s.target = BLOCKS;
    s.go = 1;
    s.pass.number = first_pass(s.launch) - 1;
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    Writer writer{reinterpret_cast<const char*>(s.to.weights) + s.to.block_offset[blockIdx.x]};
    fetch_weights(writer);
    writer.drain();
  } else {
    if (threadIdx.x == 0) stamp(1);
    take_frame();
    leave();
    s.quit = 1;
  }
  __syncthreads();
}

extern "C" __global__ void megatalker_layout(int* size) { *size = sizeof(Params); }

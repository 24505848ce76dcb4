// One frame of up to ROWS streams in one cooperative launch. This file is the order of
// the phases; each role has a header of its own.
#include "attention.cuh"
#include "fetch.cuh"
#include "matrix.cuh"
#include "sampler.cuh"

static_assert(ROWS <= BLOCKS, "one block chooses for one row");

__device__ inline bool attend_layer(int layer) {
  constexpr bool SAME = Talker::HEAD_DIM == Predictor::HEAD_DIM && Talker::QUERIES == Predictor::QUERIES;
  if (SAME || shared().pass.stream) return attend<Talker::HEAD_DIM, Talker::QUERIES>(layer);
  return attend<Predictor::HEAD_DIM, Predictor::QUERIES>(layer);
}

struct FramePlace {
  __device__ static SamplerScratch& scratch() { return shared().scratch; }
  __device__ static const Row& row(int index) { return shared().launch.row[index]; }
  __device__ static const Sampling& sampling(int index) { return shared().sampling[index]; }
};

// Chooses one code of every row. If there is one row, every block chooses for itself, which saves a hand-over; otherwise
// each row has a block of its own.
__device__ inline bool pick(int codebook) {
  Shared& s = shared();
  const int rows = s.launch.rows, assigned = rows == 1 ? 0 : blockIdx.x, thread = threadIdx.x;
  const u32 tag = tag_of_phase(0);
  if (assigned < rows && !s.launch.row[assigned].forced) {
    const int code = choose_code<FramePlace>(assigned, codebook);
    if (thread == 0 && rows == 1) s.codes[0][codebook] = code;
    if (thread == 0 && rows > 1) publish_quad(s.to.chosen + assigned * QUAD, {float(code)}, tag);
  }
  if (thread < rows) {
    const Row& row = s.launch.row[thread];
    if (row.forced) {
      s.codes[thread][codebook] = row.codes[codebook];
    } else if (rows > 1) {
      s.codes[thread][codebook] = int(await_quad(s.to.chosen + thread * QUAD, tag).values().x);
    }
  }
  consumer_sync();
  return all_arrived();
}

// The codes, as early as they exist; the ticket comes last.
__device__ inline void publish_codes() {
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

__device__ inline void mark_seen() {
  const Shared& s = shared();
  if (blockIdx.x != 0 || threadIdx.x >= s.launch.rows) return;
  const int code = s.codes[threadIdx.x][0];
  s.to.stream[s.launch.row[threadIdx.x].slot].seen[code / 32] |= 1u << (code % 32);
}

// The talker's input: the sum of the frame's code embeddings and the text row.
__device__ inline void sum_embeddings() {
  Shared& s = shared();
  constexpr int H = Talker::HIDDEN;
  const u32 tag = tag_of_phase(1);
  each_owned(H, s.launch.rows, [&](int local, int row, int half) {
    const int column = owned_column(local, half * 4);
    float4 sum{};
#pragma unroll 8
    for (int i = 0; i < GROUPS; ++i) sum = sum + widen_four(s.to.sum_tables[i] + u64(s.codes[row][i]) * H + column);
    sum = sum + __ldcg(reinterpret_cast<const float4*>(s.to.text + row * H + column));
    four(&s.residual[local][row][half * 4]) = sum;
    publish_quad(s.to.x + row * H + column, sum, tag);
  });
}

__device__ inline void set_row(int row, int slot, int fresh_from, int position, Source source, float* logits) {
  Shared& s = shared();
  s.slot[row] = slot, s.fresh_from[row] = fresh_from, s.position[row] = position;
  s.source[row] = source, s.logits[row] = logits;
}

__device__ inline void set_talker_row(int r) {
  const Shared& s = shared();
  const Row& row = s.launch.row[r];
  set_row(r, row.slot, row.position, row.position, Source{}, s.to.pending + u64(row.slot) * Talker::VOCAB);
}

// Position `pass` of a stream; in the merged pass after its position 0.
__device__ inline void set_predictor_row(int r, int pass, bool pair) {
  const Shared& s = shared();
  const float* hidden = s.to.hidden + u64(s.launch.row[r].slot) * Talker::HIDDEN;
  const Source start{PROJECTS && pass != PROJECTION_PASS ? s.to.projected + r * Predictor::HIDDEN : hidden, nullptr};
  if (pass <= 0) return set_row(r, r, 0, 0, start, nullptr);
  const u64 code = s.codes[r][pass - 1];
  const Source embedding{nullptr, s.to.input_tables[pass - 1] + code * Predictor::HIDDEN};
  float* logits = s.to.predictor_logits + (u64(r) * (GROUPS - 1) + pass - 1) * Predictor::VOCAB;
  if (pair) set_row(2 * r, r, 0, 0, start, nullptr);
  set_row(pair ? 2 * r + 1 : r, r, pair ? 0 : pass, pass, embedding, logits);
}

// The code that a pass starts with; before the talker's, the whole frame is known.
__device__ __noinline__ bool choose_input_code(int pass) {
  if (!proceed()) return false;
  if (pass <= 0) return true;
  if (!pick(pass - 1)) return false;
  if (pass != TALKER_PASS) return true;
  publish_codes();
  mark_seen();
  sum_embeddings();
  return end_phase(true);
}

// Makes everything ready for the layers of a pass.
__device__ __noinline__ void begin_pass(int pass) {
  Shared& s = shared();
  const Launch& launch = s.launch;
  const bool talker = pass == TALKER_PASS, pair = pass == 1 && merged(launch);
  if (threadIdx.x < launch.rows) {
    if (talker) {
      set_talker_row(threadIdx.x);
    } else {
      set_predictor_row(threadIdx.x, pass, pair);
    }
  }
  if (threadIdx.x == 0) {
    Pass& p = s.pass;
    p.number = pass;
    p.first_phase = own_state().phase;
    p.sizes = talker ? Sizes::of<Talker>() : Sizes::of<Predictor>();
    if (pass == PROJECTION_PASS) p.sizes.layers = 0;
    p.last = pass == PROJECTION_PASS ? PROJECT : HEAD;
    p.phases = p.sizes.layers * LAYER_PHASES + has_last_phase(pass);
    p.norms = talker ? s.to.talker_norms : s.to.predictor_norms;
    p.stream = talker ? s.to.stream : nullptr;
    p.kv = talker ? s.to.talker_kv : s.to.predictor_kv;
    p.layer_elements = talker ? TalkerRows::layer_elements() : u64(ROWS) * Predictor::PAGE_ELEMENTS;
    p.eps = talker ? s.to.talker_eps : s.to.predictor_eps;
    p.mean = 1.f / p.sizes.hidden;
    p.rows = launch.rows << int(pair);
    p.shift = p.rows <= 1 ? 0 : p.rows <= 2 ? 1 : p.rows <= 4 ? 2 : 3;
  }
  consumer_sync();
  const int vectors = (talker ? Talker::HEAD_DIM : Predictor::HEAD_DIM) / 4;
  const float* rope = talker ? s.to.talker_rope : s.to.predictor_rope;
  for (int i = threadIdx.x; i < s.pass.rows * vectors; i += CONSUMERS) {
    const int row = i / vectors, part = i % vectors * 4;
    copy_async_16(&s.rope[row][part], rope + s.position[row] * vectors * 4 + part);  // the phases see to its arrival
  }
}

// The streams' new hidden states, after the last phase.
__device__ __noinline__ void store_hidden() {
  Shared& s = shared();
  constexpr int H = Talker::HIDDEN;
  const float* norm = s.to.talker_norms + Talker::LAYERS * Talker::NORMS;
  each_owned(H, s.pass.rows, [&](int local, int row, int half) {
    const int column = owned_column(local, half * 4);
    const float4 value = four(&s.residual[local][row][half * 4]) * norm_factor(row), weight = __ldg(reinterpret_cast<const float4*>(norm + column));
    four(s.to.hidden + u64(s.slot[row]) * H + column) =
        float4{value.x * weight.x, value.y * weight.y, value.z * weight.z, value.w * weight.w};
  });
}

// The phases of a pass. Behind its last one all blocks meet at a barrier, except at the end of the launch. The loop's state
// lies in shared memory: the functions that it calls leave it no registers.
__device__ __forceinline__ bool run_pass() {
  const Shared& s = shared();
#pragma unroll 1
  while (true) {
    const int phase = own_state().phase - s.pass.first_phase, layer = phase / LAYER_PHASES;
    if (phase == s.pass.phases) break;
    if (stall()) return false;
    const PhaseKind kind = layer == s.pass.sizes.layers ? s.pass.last : PhaseKind(phase % LAYER_PHASES);
    if (!(kind == ATTENTION ? attend_layer(layer) : product(kind, layer))) return false;
  }
  if (s.pass.number != TALKER_PASS) arrive();
  return true;
}

__device__ inline void run_frame() {
  int pass = first_pass(shared().launch);
  do {
    consumer_sync();
    if (!choose_input_code(pass)) return;
    begin_pass(pass);
    if (!run_pass()) return;
    pass = shared().pass.number + 1;
    if (pass == 0 && merged(shared().launch)) ++pass;
  } while (pass <= TALKER_PASS);
  store_hidden();
}

// Data that all phases read often lies in shared memory: a barrier that makes other blocks' writes visible empties the cache
// in front of everything else.
__device__ inline void copy_params(const Params& params) {
  Shared& s = shared();
  copy_words<THREADS>(&s.to, &params.to, sizeof(Buffers));
  copy_words<THREADS>(&s.launch, &params.launch, sizeof(Launch));
  for (int row = 0; row < params.launch.rows; ++row) {
    copy_words<THREADS>(&s.sampling[row], &params.to.stream[params.launch.row[row].slot].sampling, sizeof(Sampling));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) megatalker_frame(const __grid_constant__ Params params) {
  Shared& s = shared();
  copy_params(params);
  if (threadIdx.x < THREADS / 32) s.state[threadIdx.x] = ConsumerState{};
  if (threadIdx.x == 0) {
    ring_init();
    s.quit = s.arrived = 0;
    s.target = BLOCKS;
    for (int& flag : s.timed_out) flag = 0;
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    Producer producer;
    fetch_all(producer);
    producer.drain();
  } else {
    if (threadIdx.x == 0) stamp(1);
    run_frame();
    leave();
    s.quit = 1;
  }
  __syncthreads();
}

extern "C" __global__ void megatalker_layout(int* size) { *size = sizeof(Params); }

// One frame of any number of streams, or any rows of prompts, in one cooperative launch. A grid barrier stands between its
// phases; codes, pages, hidden states and logits are those of frame.cu, bit for bit.
#include "passes.cuh"
#include "wide_attention.cuh"
#include "wide_input.cuh"
#include "wide_predictor_attention.cuh"
#include "wide_product.cuh"

// False: leave the kernel.
__device__ inline bool begin_phase() {
  if (own_state().phase > 0) arrive();
  return !stall();
}

template <class Work>
__device__ inline bool phase_after(Work work) {
  if (!begin_phase() || !await_phase()) return false;
  work();
  return end_phase(true);
}

__device__ inline void begin_wide_pass(int number) {
  WideShared& s = wide_shared();
  consumer_sync();
  if (threadIdx.x == 0) {
    WidePass& p = s.pass;
    p.kind = number == TALKER_PASS ? OF_TALKER : number == 1 ? OF_PAIRS : OF_PREDICTOR;
    p.talker = number == TALKER_PASS;
    p.number = number;
    p.rows = s.launch.rows << (p.kind == OF_PAIRS);
    p.padded = padded_rows(p.rows);
    p.sizes = p.talker ? Sizes::of<Talker>() : Sizes::of<Predictor>();
    p.norms = p.talker ? s.to.talker_norms : s.to.predictor_norms;
    p.eps = p.talker ? s.to.talker_eps : s.to.predictor_eps;
    p.mean = 1.f / p.sizes.hidden;
  }
  consumer_sync();
}

// The phases of a pass. All products begin in one place, since their code is here.
__device__ __forceinline__ bool run_wide_pass(int number) {
  WideShared& s = wide_shared();
  begin_wide_pass(number);
  if (!phase_after([&] { begin_rows(); })) return false;
  const auto heads = [&] { return s.pass.talker ? s.wide.heards : s.launch.rows; };
#pragma unroll 1
  for (int layer = PROJECTS && number == 1 ? -1 : 0; layer < s.pass.sizes.layers + (heads() > 0); ++layer) {
    const int layers = s.pass.sizes.layers;
    const bool within = layer >= 0 && layer < layers;
#pragma unroll 1
    for (int i = 0; i < (within ? LAYER_PHASES : 1); ++i) {
      const PhaseKind kind = within ? PhaseKind(i) : layer < 0 ? PROJECT : HEAD;
      if (kind == ATTENTION) {
        if (s.launch.mode == PREFILL && !phase_after([&] { append_all(layer); })) return false;
        if (!begin_phase() || !(s.pass.talker ? attend_talker(layer) : attend_predictor(layer)) || !end_phase(true)) return false;
        if (s.pass.talker && s.wide.chunks > s.pass.rows && !phase_after([&] { combine_all(s.pass.rows); })) return false;
        continue;
      }
      const int which = within ? layer : s.pass.talker ? 0 : number - 1;  // which is 0 for the projection
      if (!begin_phase() || !product_wide(kind, which, within ? s.pass.rows : heads())) return false;
      if (kind == HEAD && s.pass.talker) store_hidden();
      if (!end_phase(true)) return false;
    }
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(CONSUMERS, 1) megatalker_wide(const __grid_constant__ WideParams params) {
  WideShared& s = wide_shared();
  copy_words<CONSUMERS>(&s.to, &params.to, sizeof(Buffers));
  copy_words<CONSUMERS>(&s.launch, &params.launch, sizeof(Launch));
  copy_words<CONSUMERS>(&s.wide, &params.wide, sizeof(WideBuffers));
  if (threadIdx.x < THREADS / 32) s.state[threadIdx.x] = ConsumerState{};
  if (threadIdx.x == 0) {
    s.quit = s.arrived = 0;
    s.laps = 0;
    for (auto& ring : s.piece_landed) {
      for (u64& landed : ring) mbarrier_init(&landed, 1);
    }
    for (u32& laps : s.piece_laps) laps = 0;
    for (int i = 0; i < MOST_STAGES; ++i) mbarrier_init(&s.landed[i], 1), mbarrier_init(&s.multiplied[i], WARPS);
    fence_mbarrier_init();
    s.target = BLOCKS;
    for (int& flag : s.timed_out) flag = 0;
  }
  consumer_sync();
  choose_divisions();
  lay_out_chunks();
  if (s.launch.mode == DECODE) read_own_rows();
  int pass = s.launch.mode == DECODE ? 1 : TALKER_PASS;
#pragma unroll 1
  while (pass <= TALKER_PASS && run_wide_pass(pass)) ++pass;
  leave();
}

extern "C" __global__ void megatalker_wide_layout(int* size) { *size = sizeof(WideParams); }

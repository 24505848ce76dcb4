// One frame of any number of streams, or any rows of prompts, in one cooperative launch. A grid barrier stands between its
// phases; codes, pages, hidden states and logits are those of frame.cu, bit for bit.
#include "passes.cuh"
#include "wide_attention.cuh"
#include "wide_input.cuh"
#include "wide_product.cuh"

// `work` waits for the results of the last phase by itself.
template <class Work>
__device__ inline bool phase(Work work) {
  if (own_state().phase > 0) arrive();
  return !stall() && work() && end_phase(true);
}

template <class Work>
__device__ inline bool phase_after(Work work) {
  return phase([&] {
    if (!proceed()) return false;
    if (threadIdx.x == 0) stamp(1);
    work();
    return true;
  });
}

__device__ inline void begin_wide_pass(int number) {
  WideShared& s = wide_shared();
  consumer_sync();
  if (threadIdx.x == 0) {
    WidePass& p = s.pass;
    p.talker = number == TALKER_PASS;
    p.number = number;
    p.sizes = p.talker ? Sizes::of<Talker>() : Sizes::of<Predictor>();
    p.norms = p.talker ? s.to.talker_norms : s.to.predictor_norms;
    p.eps = p.talker ? s.to.talker_eps : s.to.predictor_eps;
    p.mean = 1.f / p.sizes.hidden;
  }
  consumer_sync();
}

__device__ inline bool run_wide_pass(int number) {
  WideShared& s = wide_shared();
  const int rows = s.launch.rows;
  begin_wide_pass(number);
  if (!phase_after([&] { begin_rows(rows); })) return false;
  if (PROJECTS && number == 0 && !phase([&] { return product_wide(PROJECT, 0, rows); })) return false;
#pragma unroll 1
  for (int layer = 0; layer < s.pass.sizes.layers; ++layer) {
#pragma unroll 1
    for (int kind = 0; kind < LAYER_PHASES; ++kind) {
      if (kind == ATTENTION) {
        if (s.launch.mode == PREFILL && !phase_after([&] { append_all(layer, rows); })) return false;
        if (!phase_after([&] { attend_wide(layer, rows); })) return false;
      } else if (!phase([&] { return product_wide(PhaseKind(kind), layer, rows); })) {
        return false;
      }
    }
  }
  const int heads = number == TALKER_PASS ? s.wide.heards : number > 0 ? rows : 0;
  return heads == 0 || phase([&] {
           if (!product_wide(HEAD, 0, heads)) return false;
           if (number == TALKER_PASS) store_hidden();
           return true;
         });
}

extern "C" __global__ void __launch_bounds__(CONSUMERS, 1) megatalker_wide(const __grid_constant__ WideParams params) {
  WideShared& s = wide_shared();
  const auto copy = [](void* target, const void* source, int size) {
    for (int i = threadIdx.x; i < size / 4; i += CONSUMERS) static_cast<int*>(target)[i] = static_cast<const int*>(source)[i];
  };
  copy(&s.to, &params.to, sizeof(Buffers));
  copy(&s.launch, &params.launch, sizeof(Launch));
  copy(&s.wide, &params.wide, sizeof(WideBuffers));
  if (threadIdx.x < THREADS / 32) s.state[threadIdx.x] = ConsumerState{};
  if (threadIdx.x == 0) {
    s.quit = s.arrived = 0;
    s.target = BLOCKS;
    for (int& flag : s.timed_out) flag = 0;
  }
  consumer_sync();
  int pass = s.launch.mode == DECODE ? 0 : TALKER_PASS;
  while (pass <= TALKER_PASS && run_wide_pass(pass)) ++pass;
  leave();
}

extern "C" __global__ void megatalker_wide_layout(int* size) { *size = sizeof(WideParams); }

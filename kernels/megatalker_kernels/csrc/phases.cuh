// The table of phases as the kernel sees it. It is written in phases.py; MT_PHASES holds a line PHASE(kind, input, norm,
// epilogue, output) for each kind of phase, those of a layer first and in their order.
#pragma once
#include "config.cuh"

enum PhaseKind : int { MT_PHASE_KINDS };
constexpr int LAYER_PHASES = MT_LAYER_PHASES;

enum class Buffer : int { MT_BUFFERS };
enum class Norm : int { MT_NORMS };
enum class Epilogue : int { MT_EPILOGUES };

struct PhaseType {
  PhaseKind kind;
  Buffer input;
  Norm norm;
  Epilogue epilogue;
  Buffer output;
};

#define PHASE(KIND, INPUT, NORM, EPILOGUE, OUTPUT) \
  {KIND, Buffer::INPUT, Norm::NORM, Epilogue::EPILOGUE, Buffer::OUTPUT},
constexpr PhaseType PHASES[] = {MT_PHASES};
#undef PHASE

// The phases with this entry, a bit for each kind.
template <class Entry>
consteval u32 all_with(Entry PhaseType::*entry, Entry wanted) {
  u32 kinds = 0;
  for (const PhaseType& phase : PHASES) kinds |= u32(phase.*entry == wanted) << phase.kind;
  return kinds;
}

// The only one. So code asks the table, and a comparison with a kind is what becomes of it.
template <class Entry>
consteval PhaseKind only(Entry PhaseType::*entry, Entry wanted) {
  int kind = 0;
  while (all_with(entry, wanted) != 1u << kind) ++kind;  // no constant expression, if there are several or none
  return PhaseKind(kind);
}

consteval PhaseKind reader_of(Buffer buffer) { return only(&PhaseType::input, buffer); }
consteval PhaseKind writer_of(Buffer buffer) { return only(&PhaseType::output, buffer); }

// The tags of what a phase reads name the phase before it, and a buffer is written again two phases later at the earliest.
__device__ constexpr bool each_reads_what_the_last_one_wrote() {
  bool holds = PHASES[HEAD].input == PHASES[LAYER_PHASES - 1].output && PHASES[QKV].input == PHASES[SUM].output;
  for (int i = 0; i < LAYER_PHASES; ++i) {
    const PhaseType &phase = PHASES[i], &next = PHASES[(i + 1) % LAYER_PHASES];
    holds = holds && phase.kind == i && next.input == phase.output && next.output != phase.output;
  }
  return holds;
}
static_assert(each_reads_what_the_last_one_wrote(), "the order of phases.py breaks the hand-over of publish.cuh");

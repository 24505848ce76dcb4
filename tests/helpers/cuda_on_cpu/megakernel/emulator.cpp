// One of the two kernels, as MT_WIDE says, all of its blocks at once.
#include "primitive.cuh"

#ifdef MT_WIDE
#include "wide.cu"
#define KERNEL megatalker_wide
#define LAYOUT megatalker_wide_layout
using Parameters = WideParams;
#else
#include "frame.cu"
#define KERNEL megatalker_frame
#define LAYOUT megatalker_layout
using Parameters = Params;
#endif

extern "C" void start(void* const* arguments) { LAYOUT(*static_cast<int* const*>(arguments[0])); }

// Returns how many copies were left on their way.
extern "C" int start_together(int blocks, int threads, int shared_bytes, unsigned seed, void* const* arguments) {
  const Parameters& params = *static_cast<const Parameters*>(arguments[0]);
  async_copies.clear();  // of a launch that was given up
  emulation::run(blocks, threads, shared_bytes, blocks, seed, [&] { KERNEL(params); });
  return std::exchange(emulation::copies, {}).size();
}

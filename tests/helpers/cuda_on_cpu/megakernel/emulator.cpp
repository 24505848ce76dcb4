// The megakernel, all of its blocks at once.
#include "frame.cu"

extern "C" void start(void* const* arguments) { megatalker_layout(*static_cast<int* const*>(arguments[0])); }

// Returns how many copies were left on their way.
extern "C" int start_together(int blocks, int threads, int shared_bytes, unsigned seed, void* const* arguments) {
  const Params& params = *static_cast<const Params*>(arguments[0]);
  async_copies.clear();  // of a launch that was given up
  emulation::run(blocks, threads, shared_bytes, blocks, seed, [&] { megatalker_frame(params); });
  return std::exchange(emulation::copies, {}).size();
}

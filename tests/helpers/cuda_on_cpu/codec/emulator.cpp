// The codec's kernels by name.
#include <string>

#include "codec.cu"

template <class Argument>
bool go(void (*kernel)(Argument), int blocks, int threads, int shared_bytes, const void* argument) {
  emulation::run(blocks, threads, shared_bytes, 1, 0, [&] { kernel(*static_cast<const Argument*>(argument)); });
  return true;
}

// False: there is no such kernel.
extern "C" bool emulate(const char* kernel, int blocks, int threads, int shared_bytes, const void* argument) {
  const std::string name = kernel;
#undef PRODUCT
#define PRODUCT(NAME, ...) \
  if (name == #NAME) return go(megatalker_codec_##NAME, blocks, threads, shared_bytes, argument);
#undef WARPGROUP_PRODUCT
#define WARPGROUP_PRODUCT PRODUCT
  PRODUCTS
  if (name == "attention") return go(megatalker_codec_attention, blocks, threads, shared_bytes, argument);
  if (name == "lookup") return go(megatalker_codec_lookup, blocks, threads, shared_bytes, argument);
  if (name == "mixing") return go(megatalker_codec_mixing, blocks, threads, shared_bytes, argument);
  return false;
}

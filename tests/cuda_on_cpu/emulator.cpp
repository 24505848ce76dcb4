// The codec's kernels by name.
#include <string>

#include "codec.cu"

template <class Argument>
int go(void (*kernel)(Argument), int blocks, int threads, const void* argument) {
  emulation::run(blocks, threads, [&] { kernel(*static_cast<const Argument*>(argument)); });
  return 0;
}

// 0, or 1 if there is no such kernel, or 2 if it wants more shared memory than there is.
extern "C" int emulate(const char* kernel, int blocks, int threads, int shared_bytes, const void* argument) {
  const std::string name = kernel;
  if (shared_bytes > int(sizeof emulation::shared)) return 2;
#undef PRODUCT
#define PRODUCT(ROWS, COLUMNS, ...)         \
  if (name == "product_" #ROWS "x" #COLUMNS) \
    return go(megatalker_codec_product_##ROWS##x##COLUMNS, blocks, threads, argument);
  PRODUCTS
  if (name == "attention") return go(megatalker_codec_attention, blocks, threads, argument);
  if (name == "lookup") return go(megatalker_codec_lookup, blocks, threads, argument);
  if (name == "mixing") return go(megatalker_codec_mixing, blocks, threads, argument);
  return 1;
}

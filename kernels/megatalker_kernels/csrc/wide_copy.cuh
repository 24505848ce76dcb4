// Copies of the wide kernel: by bulk from sm_90 on, by all lanes of a warp before.
#pragma once
#include "copy.cuh"

// A whole warp brings a piece, perhaps of no bytes.
__device__ inline void bring_piece(void* target, const void* source, int bytes, u64* landed) {
  const int lane = own_thread() & 31;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  if (bytes == 0) return mbarrier_arrive(landed);
  expect_bytes(landed, bytes);
  copy_bulk(target, source, bytes, landed);
#else
  const u32 to = shared_address(target);
#pragma unroll 1
  for (int i = lane * 16; i < bytes; i += 32 * 16) copy_async_16(to + i, static_cast<const char*>(source) + i);
#endif
}

// A piece has been brought, or there was none.
__device__ inline void end_piece() {
#if __CUDA_ARCH__ < 900
  commit_async_copies();
#endif
}

// Until a piece has landed: `LATEST` were ended after it.
template <int LATEST>
__device__ inline void await_piece(u64* landed, u32 parity) {
#if __CUDA_ARCH__ >= 900
  wait_for(landed, parity);
#else
  await_async_copies_but<LATEST>();
#endif
}

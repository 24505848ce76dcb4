// Reads memory and does nothing else: the floor that a frame's weights put under its time.
using u64 = unsigned long long;

constexpr int LOADS = 8;  // independent loads of a thread

__device__ uint4 mix(uint4 a, uint4 b) { return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}; }

__device__ uint4 read(const uint4* data, u64 count) {
  const u64 step = u64(gridDim.x) * blockDim.x;
  uint4 sum{0, 0, 0, 0};
  u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
    uint4 part[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; ++j) part[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < LOADS; ++j) sum = mix(sum, part[j]);
  }
  for (; i < count; i += step) sum = mix(sum, data[i]);
  return sum;
}

// data[0, once), then `times` times the `again` items behind them.
extern "C" __global__ void megatalker_read(const uint4* data, u64 once, u64 again, int times, uint4* out) {
  uint4 sum = read(data, once);
  for (int i = 0; i < times; ++i) sum = mix(sum, read(data + once, again));
  if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u) *out = sum;  // keeps the loads alive
}

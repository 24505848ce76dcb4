// Float32 products on tensor cores, which take shorter numbers: a number becomes the sum of a high and a low part, and what two low
// parts would add is left out. numbers.py says which of these a kernel is compiled for.
#pragma once
#include "primitive.cuh"

// Parts in TensorFloat-32, for numbers of any size: the error is below 2^-21 of the value.
struct Tensorfloats {
  struct Four {
    u32 high[4], low[4];
  };
  static constexpr int PASSES = 6;

  __device__ static Four split(float4 v) {
    Four four;
    const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four.high[i] = (__float_as_uint(value[i]) + 0x1000u) & 0xffffe000u;
      four.low[i] = __float_as_uint(value[i] - __uint_as_float(four.high[i]));
    }
    return four;
  }

  __device__ static Four weights(float4 v) { return split(v); }

  // Of what high parts give with each other, and with low parts.
  struct Sum {
    float high[4], low[4];
    __device__ float operator[](int i) const { return high[i] + low[i]; }
  };

  // One of the steps by which sixteen columns of sixteen weight rows and eight input rows are multiplied.
  __device__ static void multiply(Sum& sum, int pass, const Four& upper, const Four& lower, const Four& x) {
    const int i = pass % 2 * 2;
    const auto &u = pass < 2 ? upper.low : upper.high, &l = pass < 2 ? lower.low : lower.high;
    const auto& b = pass / 2 == 1 ? x.low : x.high;
    mma_tf32(pass < 4 ? sum.low : sum.high, u[i], l[i], u[i + 1], l[i + 1], b[i], b[i + 1]);
  }
};

// Parts in float16, twice as fast, for numbers within its range; low parts are kept 2^11 times as large, so that they stay in it, too:
// the error is below 2^-22 of the value, or 2^-36.
struct Halves {
  struct Four {
    u32 high[2], low[2];
  };
  static constexpr int PASSES = 3;
  static constexpr float ENLARGED = 2048;

  __device__ static Four split(float4 v) {
    const u32 front = to_f16(v.x, v.y), back = to_f16(v.z, v.w);
    const float2 f = from_f16(front), b = from_f16(back);
    return {{front, back},
            {to_f16((v.x - f.x) * ENLARGED, (v.y - f.y) * ENLARGED), to_f16((v.z - b.x) * ENLARGED, (v.w - b.y) * ENLARGED)}};
  }

  // They come split.
  __device__ static Four weights(float4 v) {
    return {{__float_as_uint(v.x), __float_as_uint(v.y)}, {__float_as_uint(v.z), __float_as_uint(v.w)}};
  }

  struct Sum {
    float high[4], low[4];
    __device__ float operator[](int i) const { return fmaf(low[i], 1 / ENLARGED, high[i]); }
  };

  __device__ static void multiply(Sum& sum, int pass, const Four& upper, const Four& lower, const Four& x) {
    const auto &u = pass == 0 ? upper.low : upper.high, &l = pass == 0 ? lower.low : lower.high, &b = pass == 1 ? x.low : x.high;
    mma_f16(pass < 2 ? sum.low : sum.high, u[0], l[0], u[1], l[1], b[0], b[1]);
  }
};

// High parts alone: three times as fast, with an error of 2^-11 of the value.
struct HighHalves : Halves {
  static constexpr int PASSES = 1;

  __device__ static Four split(float4 v) { return {{to_f16(v.x, v.y), to_f16(v.z, v.w)}, {}}; }

  struct Sum {
    float high[4];
    __device__ float operator[](int i) const { return high[i]; }
  };

  __device__ static void multiply(Sum& sum, int, const Four& upper, const Four& lower, const Four& x) {
    mma_f16(sum.high, upper.high[0], lower.high[0], upper.high[1], lower.high[1], x.high[0], x.high[1]);
  }
};
